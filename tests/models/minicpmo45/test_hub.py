"""Where a checkpoint is looked for, and what is said before 20 GB are fetched."""

import threading
from collections import namedtuple
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from parley import logs, models
from parley.errors import SetupError
from parley.models.minicpmo45 import hub
from parley.models.minicpmo45.hub import (
    HuggingFace,
    NotDownloaded,
    is_wanted,
    locate,
)

GB = 10**9


class FakeHub(HuggingFace):
    """A hub with one repository.

    Args:
        is_online: whether it can be asked.
    """

    cache = Path()

    def __init__(self, cache: Path, *, is_online: bool = True, local: Path | None = None) -> None:
        self.cache = cache
        self.is_online, self.local = is_online, local
        self.fetched: list[tuple[str, str | None]] = []
        self.arriving = threading.Event()
        self.arriving.set()
        self.contents = {
            "model-00001-of-00001.safetensors": 19 * GB,
            "assets/token2wav/flow.pt": GB,
            "modeling_minicpmo.py": 5 * GB,
        }

    def cached(self, repository: str, revision: str | None) -> Path | None:
        return self.local

    def files(self, repository: str, revision: str | None) -> dict[str, int] | None:
        return self.contents if self.is_online else None

    def fetch(self, repository: str, revision: str | None) -> Path:
        self.arriving.wait()
        self.fetched.append((repository, revision))
        return self.cache


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(free, 0, free))


@pytest.mark.parametrize(
    "name",
    [
        "openbmb/MiniCPM-o-4_5",
        "88plug/MiniCPM-o-4.5-W4A16",
        "some-one/with.dots.in-it",
    ],
)
def test_a_hub_id_may_hold_dots(name, tmp_path, monkeypatch):
    with_free(monkeypatch, 100 * GB)
    there = FakeHub(tmp_path)

    assert locate(name, hub=there) == tmp_path
    assert there.fetched == [(name, None)]
    assert models.resolve(name) == "minicpmo45"


def test_the_models_own_name_means_the_official_repository(tmp_path, monkeypatch):
    with_free(monkeypatch, 100 * GB)
    there = FakeHub(tmp_path)

    locate("minicpmo45", "v1.2", hub=there)

    assert there.fetched == [("openbmb/MiniCPM-o-4_5", "v1.2")]


def test_a_full_disk_is_noticed_before_the_first_byte(tmp_path, monkeypatch):
    with_free(monkeypatch, 12 * GB)
    there = FakeHub(tmp_path)

    with pytest.raises(SetupError, match=r"needs 20\.0 GB more .* 12\.0 GB are free") as caught:
        locate("minicpmo45", hub=there)

    assert "HF_HOME" in caught.value.hint
    assert there.fetched == []


def test_what_has_arrived_already_needs_no_room(tmp_path, monkeypatch):
    with_free(monkeypatch, 12 * GB)
    there = FakeHub(tmp_path)
    blobs = tmp_path / "models--openbmb--MiniCPM-o-4_5" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "abc").open("wb") as file:
        file.truncate(19 * GB)  # sparse

    assert locate("minicpmo45", hub=there) == tmp_path


def test_without_a_connection_the_cache_is_used(tmp_path):
    there = FakeHub(tmp_path, is_online=False, local=tmp_path / "snapshot")

    assert locate("minicpmo45", hub=there) == tmp_path / "snapshot"
    assert there.fetched == []


def test_without_a_connection_and_a_cache_it_is_refused(tmp_path):
    with pytest.raises(SetupError, match="the hub cannot be reached"):
        locate("minicpmo45", hub=FakeHub(tmp_path, is_online=False))


def test_a_hub_that_nobody_answers_at_counts_as_unreachable(monkeypatch):
    def request(*_: object, **__: object) -> None:
        raise HfHubHTTPError.__bases__[0]("Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", request)
    monkeypatch.setattr("huggingface_hub.snapshot_download", request)

    assert HuggingFace().files("some/model", None) is None
    with pytest.raises(SetupError, match="could not be downloaded: Name or service not known"):
        HuggingFace().fetch("some/model", None)


def test_looking_downloads_nothing(tmp_path):
    there = FakeHub(tmp_path)

    with pytest.raises(NotDownloaded, match="has not been downloaded yet"):
        locate("openbmb/MiniCPM-o-4_5", hub=there, downloads=False)

    assert there.fetched == []


def test_only_bytes_that_arrive_are_progress(tmp_path, monkeypatch):
    with_free(monkeypatch, 100 * GB)
    monkeypatch.setattr(hub, "PROGRESS_EVERY_S", 0.001)
    there = FakeHub(tmp_path)
    there.arriving.clear()
    # Looked at twice before it begins; then one of three looks finds more.
    held = iter([0, 0, 0, 2 * GB, 2 * GB])
    told: list[tuple[str, dict[str, object]]] = []

    def arrived(cache: object, repository: str) -> int:
        found = next(held, None)
        if found is None:
            there.arriving.set()
        return 2 * GB if found is None else found

    monkeypatch.setattr(hub, "held_bytes", arrived)
    monkeypatch.setattr(logs, "progress", lambda log, event, **facts: told.append((event, facts)))

    locate("minicpmo45", hub=there)

    ((event, facts),) = told
    assert event == "download_progressed"
    assert (facts["gb"], facts["of_gb"]) == (2.0, 20.0)


def test_python_files_of_a_repository_are_never_fetched():
    assert is_wanted("config.json")
    assert is_wanted("assets/token2wav/flow.yaml")
    assert not is_wanted("modeling_minicpmo.py")
