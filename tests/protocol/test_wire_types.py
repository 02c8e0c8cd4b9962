"""The generated schema and types are current, and say what they should."""

import pytest

from tools import wire_types


def test_generated_files_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert (wire_types.main(["--check"]), capsys.readouterr().err) == (0, "")


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
