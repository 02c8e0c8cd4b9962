"""What hints say about installing works where the reader stands, and never fetches a stranger."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from parley import installation
from parley.errors import SetupError
from parley.installation import DISTRIBUTION, EXTRA_OF, install_command
from parley.session_log.redis_logs import RedisScripts
from parley.settings.tree import TraceSettings
from parley.tracing import Tracing

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_in_the_clone_the_hint_is_the_command_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "pip").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setattr(installation, "clone", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)

    assert install_command("talk") == ".venv/bin/pip install -e '.[talk]'"


def test_this_clone_is_recognised() -> None:
    assert installation.clone() == ROOT


def test_clones_differ_by_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path / "clone"), "-c", "user.name=a", "-c", "user.email=a"]
        return subprocess.run([*command, *words], check=True, capture_output=True, text=True).stdout

    def shown(folder: str) -> str:
        monkeypatch.setattr(installation, "clone", lambda: tmp_path / folder)
        installation.build_id.cache_clear()
        return installation.build_id()

    subprocess.run(["git", "init", "-q", str(tmp_path / "clone")], check=True)
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "HEAD")[:12]
    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    git("commit", "-q", "--allow-empty", "-m", "two")
    second = git("rev-parse", "HEAD")[:12]

    assert (shown("clone"), shown("other")) == (second, first)
    git("pack-refs", "--all")
    git("checkout", "-q", "--detach", "other")
    assert (shown("clone"), shown("other")) == (first, first)
    assert shown("nothing") == ""
    installation.build_id.cache_clear()


def test_installed_wheels_differ_by_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shown(record: str, origin: str | None = None) -> str:
        files = {"RECORD": record, "direct_url.json": origin}
        found = type("Found", (), {"read_text": lambda self, name: files[name]})()
        monkeypatch.setattr(installation, "clone", lambda: None)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found)
        installation.build_id.cache_clear()
        return installation.build_id()

    one = "parley/a.py,sha256=x,1\nparley/__pycache__/a.pyc,,\nx.dist-info/INSTALLER,sha256=y,4\n"
    assert re.fullmatch("[0-9a-f]{12}", shown(one))
    assert shown(one) == shown(one.replace("sha256=y", "sha256=z"))
    assert shown(one) != shown(one.replace("sha256=x", "sha256=z"))
    assert shown(one, '{"vcs_info": {"commit_id": "0123456789abcdef"}}') == "0123456789ab"
    installation.build_id.cache_clear()


def test_an_installation_from_a_wheel_file_names_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "parley_voice-9-py3-none-any.whl"
    wheel.touch()
    added(tmp_path / "site", monkeypatch, direct_url={"url": wheel.as_uri(), "archive_info": {}})
    monkeypatch.setattr(installation, "clone", lambda: None)
    monkeypatch.chdir(tmp_path)

    assert install_command("talk").endswith(f" install '{wheel.name}[talk]'")


def test_elsewhere_the_distribution_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(tmp_path, monkeypatch)
    monkeypatch.setattr(installation, "clone", lambda: None)

    assert install_command("talk").endswith(" install 'parley-voice[talk]'")


def added(
    folder: Path, monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object] | None = None
) -> None:
    """Pretend that our distribution is installed in `folder`."""
    info = folder / "parley_voice-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 9\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(str(folder))


def test_no_text_and_no_hint_installs_the_stranger_called_parley() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if not listed:
        pytest.skip("not a git checkout")
    stranger = re.compile(r"install\s+(?:-\S+\s+)*['\"]?parley(?![-\w/.])")

    found = [
        name
        for name in listed
        if name.endswith((".py", ".md", ".toml", ".js", "Makefile", ".json", ".yml", ".yaml"))
        and name != "tests/test_installation.py"
        and (ROOT / name).is_file()
        and stranger.search((ROOT / name).read_text(encoding="utf-8"))
    ]

    assert found == []


def test_every_extra_named_in_a_hint_brings_the_package() -> None:
    extras = {
        extra: {Requirement(each).name.lower() for each in needs}
        for extra, needs in PROJECT["optional-dependencies"].items()
    }
    named = {
        "huggingface_hub": "huggingface_hub",
        "opentelemetry": "opentelemetry-sdk",
        "PIL": "pillow",
        "silero_vad": "silero-vad",
        "prometheus_client": "prometheus-client",
        "python_multipart": "python-multipart",
        "yaml": "pyyaml",
    }

    for module, extra in EXTRA_OF.items():
        assert named.get(module, module).lower() in extras[extra]


def test_what_an_extra_is_for_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("redis.asyncio", "opentelemetry"):
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(SetupError) as without_redis:
        RedisScripts("redis://localhost", "a setting")
    with pytest.raises(SetupError) as without_otel:
        Tracing.of(TraceSettings(otlp_endpoint="http://localhost:1"), "gateway")

    assert install_command("redis") in without_redis.value.hint
    assert install_command("otel") in without_otel.value.hint
