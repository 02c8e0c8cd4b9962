"""`parley recordings` and `parley rerun` on a data folder."""

import asyncio
import json
import zipfile

import pytest
from tests.support.command import run
from tests.support.recordings import Running, recorded
from tests.support.sessions import loud, worker_harness

from parley.clock import SystemClock
from parley.gateway.maintenance import index_row
from parley.gateway.state import STATE_FILE, State
from parley.library.voices import SHIPPED
from parley.media.reference import read_voice
from parley.models.parrot import Parrot
from parley.recording import lines
from parley.recording.layout import RecordingFolders
from parley.recording.recorder import Recordings
from parley.settings import StorageSettings
from parley.turns import TurnJudges


def test_recordings_are_listed_newest_first(tmp_path, capsys):
    recorded(tmp_path / "data", "older", title="one \x1b[31m red")
    recorded(tmp_path / "data", "newer", created_s=1_800_000_000.0)
    recorded(tmp_path / "data", "torn").meta.write_text("{")

    assert run("recordings", "list") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == ["id", "newer", "older", "torn"]
    assert "\x1b" not in out
    assert "meta.json is not JSON" in out

    assert run("recordings", "--json", "list", "--limit", "1") == 0
    assert [row["session_id"] for row in json.loads(capsys.readouterr().out)] == ["newer"]


def test_an_empty_folder_is_not_an_error(capsys):
    assert run("recordings", "list") == 0
    assert capsys.readouterr().out == "No recordings in data/sessions.\n"


def test_one_recording_is_shown(tmp_path, capsys):
    recorded(tmp_path / "data", "one")

    assert run("recordings", "show", "one") == 0
    out = capsys.readouterr().out
    assert "omni_duplex" in out
    assert "assistant  word 0" in out
    assert run("recordings", "show", "one", "--json") == 0
    assert json.loads(capsys.readouterr().out)["meta"]["session_id"] == "one"


@pytest.mark.parametrize("name", ["nobody", "../data", "..", "/etc"])
def test_what_is_not_there_is_a_usage_error(capsys, name):
    verb = ("recordings", "delete", "--yes") if name != "/etc" else ("recordings", "show")

    assert run(*verb, name) == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["./data/sessions/", "data/sessions", "./data", "./data/sessions/x"]
)
def test_a_folder_that_is_no_recording_is_never_deleted(tmp_path, capsys, name):
    recorded(tmp_path / "data", "one")
    (tmp_path / "data/sessions/x").mkdir()

    assert run("recordings", "delete", name, "--yes") == 2
    assert "There is no recording" in capsys.readouterr().err
    assert (tmp_path / "data/sessions/x").is_dir()
    assert run("recordings", "delete", "./data/sessions/one", "--yes") == 0


def test_recordings_are_packed_mixed_and_deleted(tmp_path, capsys):
    folder = recorded(tmp_path / "data", "one")

    for where in ((), ("--to", "new/folder")):
        assert run("recordings", "export", "one", *where) == 0
        path = "/".join((*where[1:], "one.zip"))
        assert capsys.readouterr().out == f"{path}\n"
        assert zipfile.ZipFile(tmp_path / path).testzip() is None
    assert run("recordings", "render", "one") == 0
    assert folder.replay_mp4.exists()
    assert run("recordings", "delete", "one", "--yes") == 0
    assert not folder.path.exists()
    assert "deleted one" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [("delete", "one", "--yes"), ("clean", "--max-gb", "0")])
def test_a_server_forgets_what_the_command_line_has_deleted(tmp_path, verb):
    data_dir = tmp_path / "data"
    folder = recorded(data_dir, "one")

    async def delete() -> tuple[set[str], bytes | None, list[str]]:
        async with State(data_dir / STATE_FILE) as state:
            await state.index([index_row(folder)])
            await state.keep_response("resp", "key k", 1.0, "one", b"what was said")
            assert await asyncio.to_thread(run, "recordings", *verb) == 0
            known, _ = await state.unsettled()
            return known, await state.response("resp", "key k"), await state.refused_recordings()

    refused = ["one"] if "delete" in verb else []
    assert asyncio.run(delete()) == (set(), None, refused)


def test_a_state_that_cannot_be_changed_is_reported(tmp_path, capsys):
    recorded(tmp_path / "data", "one")
    (tmp_path / "data" / STATE_FILE).write_text("no database " * 100)

    assert run("recordings", "delete", "one", "--yes") == 2
    assert "state.db cannot be changed" in capsys.readouterr().err
    assert (tmp_path / "data" / STATE_FILE).read_text().startswith("no database")


def test_a_running_recording_is_not_deleted(tmp_path, capsys):
    with Running(tmp_path / "data", "live") as folder:
        assert run("recordings", "delete", "live", "--yes") == 2
        assert folder.path.exists()
    assert "'live' is still being recorded" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_cleaning_that_leaves_something_fails(tmp_path, monkeypatch, more):
    recorded(tmp_path / "data", "one")

    def refuse(folder: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("parley.recording.retention.delete", refuse)
    assert run("recordings", "clean", "--max-gb", "0", *more) == 1


def test_cleaning_says_what_would_go_first(tmp_path, capsys):
    folder = recorded(tmp_path / "data", "old")

    assert run("recordings", "clean", "--retention-days", "30", "--dry-run") == 0
    assert "would delete old (expired)" in capsys.readouterr().out
    assert folder.path.exists()
    assert run("recordings", "clean", "--max-storage-gb", "0", "--json") == 0
    assert json.loads(capsys.readouterr().out)["deleted_capacity"] == 1
    assert not folder.path.exists()
    assert run("recordings", "clean") == 0
    assert "No limit is set" in capsys.readouterr().out


def test_a_rerun_judges_turns_as_the_worker_did(tmp_path, monkeypatch):
    given: list[TurnJudges] = []
    judging = type("Judging", (Parrot,), {"use_judges": lambda _, one: given.append(one)})
    monkeypatch.setattr("parley.models.load", lambda _: judging())
    monkeypatch.setenv("PARLEY_WORKER__END_OF_TURN", "model")
    folder = recorded(tmp_path / "data", "one")

    run("rerun", str(folder.path), "--model", "parrot")

    (judges,) = given
    assert judges.onsets is not None
    assert judges.end_of_turn is not None


def test_a_recording_is_done_again_by_its_id(tmp_path, capsys):
    async def talk() -> None:
        storage = StorageSettings(data_dir=tmp_path / "data")
        kept = Recordings(storage, worker_id="w", model="parrot", clock=SystemClock())
        async with worker_harness(recordings=kept) as harness:
            harness.host.voices = lambda _: lambda _: read_voice(SHIPPED, limit_s=60)
            harness.host.seed = 7
            one = await harness.ready("duplex", "omni_1", ref_audio_path="default")
            for count in (1, 2):
                one.say({"type": "audio_chunk", "audio_base64": loud()})
                await one.until("result", count)
            one.say({"type": "stop"})
            await one.over()
        await asyncio.to_thread(kept.close)

    asyncio.run(talk())
    (folder,) = RecordingFolders(tmp_path / "data")

    head = lines.read_head(folder.journal)
    assert head is not None
    assert head.seed == 7, "as model.seed says"
    assert run("replay", folder.recording_id, "--model", "parrot") == 0
    assert "2 of 2 entries, equal" in capsys.readouterr().out

    text = folder.journal.read_text().replace('"is_listen":true', '"is_listen":false')
    folder.journal.write_text(text)
    assert run("rerun", str(folder.path), "--model", "parrot") == 1
    assert "mode was 'SPEAK', is 'LISTEN'" in capsys.readouterr().out

    first = '["made","unit_done",{"index":0,'
    others = [line for line in text.splitlines(keepends=True) if first not in line]
    folder.journal.write_text("".join(others))
    assert run("rerun", str(folder.path), "--model", "parrot") == 1
    assert "incomplete\n  ended early: unit 0 is missing" in capsys.readouterr().out
