"""The generated schema and types are current, and say what they should."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import PROCESS_S

from parley.protocol import export


def test_generated_files_are_current() -> None:
    stale = [str(path) for path in export.stale()]

    assert stale == [], "run python -m parley.protocol.export"


def test_a_client_may_leave_out_defaults_and_a_server_always_sends_them() -> None:
    types = export.typescript()

    assert "  interface Append {\n" in types
    assert "    force_listen?: boolean;" in types
    assert "    eta_seconds: number | null;" in types
    assert "    recording_session_id?: string;" in types


def test_the_schema_names_aliases() -> None:
    dialect = next(dialect for dialect in export.DIALECTS if dialect.name == "duplex")

    chunk = export.schema(dialect)["$defs"]["AudioChunk"]

    assert chunk["x-also-accepted"]["audio_base64"] == ["audio", "audio_data"]
    assert chunk["required"] == ["type"]


def test_check_exits_clean_when_current() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parley.protocol.export", "--check"],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
