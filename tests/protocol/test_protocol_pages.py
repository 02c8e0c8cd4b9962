"""The printed protocol pages: their examples are messages, and their tables are true."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from tests.support.dialects import MESSAGES, NAMES, connection

from parley import errors
from parley.errors import ParleyError
from parley.protocol import codec
from parley.protocol.resume import ResumeClientMessage, ResumeServerMessage
from tools import wire_types

PAGES = Path(__file__).resolve().parents[2] / "docs" / "protocols"
EXAMPLE = re.compile(r"```json (client|server)(?:=(\w+))?\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str, str]]:
    """Dialect, sender and text of every example."""
    found = []
    for page in ("README", *NAMES):
        text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
        for sender, named, body in EXAMPLE.findall(text):
            found.append((named or page, sender, body))
    return found


@pytest.mark.parametrize(("name", "sender", "text"), examples())
def test_every_example_is_a_message_that_loses_nothing(name: str, sender: str, text: str) -> None:
    module = MESSAGES[name]
    decode = module.decode_client if sender == "client" else module.decode_server

    message = json.loads(codec.encode(decode(text)))

    for field, value in json.loads(text).items():
        if not isinstance(value, dict | list):
            assert message[field] == value


def test_the_examples_of_resuming_are_messages() -> None:
    found = EXAMPLE.findall((PAGES / "resume.md").read_text(encoding="utf-8"))
    assert len(found) >= 5

    for sender, _, text in found:
        kind = ResumeClientMessage if sender == "client" else ResumeServerMessage
        assert msgspec.to_builtins(msgspec.json.decode(text, type=kind)) == json.loads(text)


def rows(name: str) -> list[tuple[str, str, str]]:
    """Code, close and type ("" if not shown) of every row of a page's error table."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    table = text[text.rindex("| code |") :]
    found = []
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        kind, close = cells[1:3] if name == "realtime" else ("", cells[1])
        found += [(code, close, kind) for code in re.findall(r"`(\w+)`", cells[0])]
    return found


def sample(code: str) -> ParleyError | None:
    """Some error with this code."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, ParleyError) and kind.code == code:
            if kind in (errors.BadInput, errors.Refused):
                continue
            error = kind.__new__(kind, "x")
            error.type_name = "x"  # type: ignore[attr-defined]
            return error
    return None


@pytest.mark.parametrize(
    ("name", "code", "close", "kind"),
    [(name, *row) for name in ("README", *NAMES) for row in rows(name)],
)
def test_every_row_of_the_error_tables_is_true(name: str, code: str, close: str, kind: str) -> None:
    if code in ("cancelled", "timeout"):
        return  # The dialects have messages of their own for these.
    error = sample(code)
    assert error is not None
    if close == "-":
        # Refused as an HTTP request, before there is a socket that could be closed.
        assert error.http_status in (403, 421)
        return
    for dialect in map(connection, NAMES if name == "README" else [name]):
        answer = dialect.answer(error)

        assert str(answer.close_code) == close.replace("open", "None")
        if kind:
            told = msgspec.to_builtins(answer.messages[0])["error"]
            assert (told["code"], told["type"], told["message"]) == (code, kind, str(error))


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
