"""The generated schema and types are current, and say what they should."""

import subprocess
import sys

from tests.support.patience import PROCESS_S

from tools import wire_types


def test_generated_files_are_current() -> None:
    stale = [str(path) for path in wire_types.stale()]

    assert stale == [], "run python -m tools.wire_types"


def test_a_client_may_leave_out_defaults_and_a_server_always_sends_them() -> None:
    types = wire_types.typescript()

    assert "  interface Append {\n" in types
    assert "    force_listen?: boolean;" in types
    assert "    eta_seconds: number | null;" in types
    assert "    recording_session_id?: string;" in types


def test_the_schema_names_aliases() -> None:
    dialect = next(dialect for dialect in wire_types.DIALECTS if dialect.name == "duplex")

    chunk = wire_types.schema(dialect)["$defs"]["AudioChunk"]

    assert chunk["x-also-accepted"]["audio_base64"] == ["audio", "audio_data"]
    assert chunk["required"] == ["type"]


def test_check_exits_clean_when_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.wire_types", "--check"],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
        cwd=wire_types.ROOT,
    )

    assert (done.returncode, done.stderr) == (0, "")
