"""One order of sources, and mistakes that say where they are."""

from pathlib import Path

import pytest
from tools.settings_page import main, page

from parley.errors import SetupError
from parley.settings import Settings, load
from parley.settings.tree import leaves


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "parley.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_rule() -> None:
    read = load()

    assert read == Settings()
    assert read.gateway.port == 8006
    with pytest.raises(ValueError, match="frozen"):
        read.workers = 3  # type: ignore[misc]


def test_file_beats_default_environment_beats_file_flag_beats_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("workers = 2\n[gateway]\nport = 1\nhttp = true\nhost = '::'\n[queue]\nmax_size = 7\n")
    monkeypatch.setenv("PARLEY_GATEWAY__PORT", "2")
    monkeypatch.setenv("PARLEY_GATEWAY__HOST", "127.0.0.1")

    read = load(flags={"gateway.port": 3, "gateway.host": None, "model": {"name": "pocket"}})

    assert (read.gateway.port, read.gateway.host, read.gateway.http) == (3, "127.0.0.1", True)
    assert (read.queue.max_size, read.workers, read.model.name) == (7, 2, "pocket")


def test_the_environment_writes_lists_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARLEY_SECURITY__ALLOWED_ORIGINS", "https://a.example, https://b.example")

    assert load().security.allowed_origins == ("https://a.example", "https://b.example")


def test_a_file_named_on_the_command_line_replaces_the_one_in_the_folder() -> None:
    write("[gateway]\nport = 1\n")
    other = write("[gateway]\nport = 2\n", "other.toml")

    assert load(other).gateway.port == 2


def test_unknown_names_are_reported_with_the_nearest_known_one_and_short_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PARLEY_SECURITY__ADMIN_TOKEN", 19 * "7")
    write("[eta]\neta_streaming_s = 20\n[gateway]\nprot = 1\n[wrong]\nport = 1\n")
    monkeypatch.setenv("PARLEY_QUEUE__MAXSIZE", "9")
    heard: list[str] = []

    load(warn=heard.append)

    text = "\n".join(heard)
    assert "unknown setting 'eta.eta_streaming_s'" in text
    assert "unknown setting 'gateway.prot' is ignored; did you mean 'gateway.port'?" in text
    assert "unknown setting 'wrong'" in text
    assert "security.admin_token is shorter than 20 characters and can be guessed" in text
    assert "PARLEY_QUEUE__MAXSIZE" in text
    assert "did you mean 'queue.max_size'?" in text
    assert len(heard) == 5
    load(flags={"security": {"admin_token": "", "allowed_hosts": ["a.example"]}}, warn=heard.append)
    assert "clients may be admins" in heard[-1]


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("file", "The setting gateway.port is 99999 in parley.toml: input should be less"),
        ("environment", "The setting gateway.port is '99999' in the environment (PARLEY_GATEWAY"),
        ("flag", "The setting gateway.port is 99999 on the command line: input should be less"),
    ],
)
def test_a_wrong_value_is_named_with_the_place_it_came_from(
    where: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "file":
        write("[gateway]\nport = 99999\n")
    elif where == "environment":
        monkeypatch.setenv("PARLEY_GATEWAY__PORT", "99999")

    with pytest.raises(SetupError) as caught:
        load(flags={"gateway.port": 99999} if where == "flag" else None)

    assert str(caught.value).startswith(sentence)
    assert "gateway.port" in caught.value.hint
    assert "8006" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("model.slots", "0", "input should be greater than or equal to 1, or input should be 'aut"),
        ("model.slots", "many", "as an integer, or input should be 'auto'"),
        ("limits.session_log_mb", "inf", "input should be a finite number"),
    ],
)
def test_a_wrong_number_says_what_is_expected(name: str, value: str, why: str) -> None:
    with pytest.raises(SetupError) as caught:
        load(flags={name: value})

    assert why in str(caught.value)
    assert load(flags={"model.slots": "auto"}).model.slots == "auto"
    assert load(flags={"model.slots": "4"}).model.slots == 4


def test_the_page_shows_defaults_as_they_are_written_in_the_environment() -> None:
    text = page()

    assert "| `forward_auth.proxies` | `127.0.0.1,::1` |" in text
    assert "| `model.llm_key` | none |" in text
    assert "below 2147483648 |" in text


def test_an_empty_value_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[storage]\nassets_dir = ''\n[gateway]\nport = 1\n")
    monkeypatch.setenv("PARLEY_STANDBY__REDIS_URL", "")
    monkeypatch.setenv("PARLEY_GATEWAY__PORT", "")

    assert load(flags={"model.name": ""}) == Settings()


@pytest.mark.parametrize("name", ["security.admin_token", "model.llm_key"])
def test_a_secret_is_not_repeated_in_an_error(name: str) -> None:
    with pytest.raises(SetupError) as caught:
        load(flags={name: ["hunter2"]})

    assert "hunter2" not in str(caught.value) + caught.value.hint


def test_a_missing_or_broken_file_is_a_plain_sentence() -> None:
    with pytest.raises(SetupError, match="does not exist"):
        load(Path("nowhere.toml"))
    with pytest.raises(SetupError, match="not valid TOML") as caught:
        load(write("[gateway\n"))
    assert "line 1" in caught.value.hint


def test_every_setting_has_a_meaning() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| `")]
    without = [row[0] for row in rows if not row[-1].strip(" |")]

    assert len(rows) == len(list(leaves()))
    assert without == []


def test_the_page_is_current() -> None:
    assert main(["--check"]) == 0, "run python -m tools.settings_page"
