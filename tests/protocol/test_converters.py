"""Types are looked at when modules are imported: two threads that make msgspec look at a Struct at
the same time end the process with a segmentation fault (`parley.protocol.codec.Converter`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import parley
from parley.protocol.codec import Converter
from parley.protocol.values import VadOptions

SOURCE = Path(parley.__file__).parent
LATE = {
    "protocol/codec.py": {"__init__", "__post_init__", "convert"},
    "cli/conform/schemas.py": {"_structs"},
    "turns/keywords.py": {"__init__"},
}
"""Functions that may: `Converter` itself, one of a program with a single thread, and a decoder of
pocketsphinx."""


def calls(node: ast.AST, within: str | None = None) -> Iterator[tuple[ast.Call, str | None]]:
    """Every call, and the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, within
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from calls(child, child.name)
        else:
            yield from calls(child, within)


def looks_at_a_type(call: ast.Call, within: str | None) -> bool:
    """Whether msgspec may look at a type here while threads run."""
    text = ast.unparse(call.func)
    if text == "msgspec.convert":
        return True
    if text in ("msgspec.json.decode", "msgspec.msgpack.decode"):
        return len(call.args) > 1 or any(each.arg == "type" for each in call.keywords)
    made = text.partition("[")[0]
    return within is not None and made.endswith((".Decoder", "Converter"))


def test_no_function_has_msgspec_look_at_a_type():
    found = [
        f"{file}:{call.lineno} in {within}"
        for path in sorted(SOURCE.rglob("*.py"))
        for file in [path.relative_to(SOURCE).as_posix()]
        for call, within in calls(ast.parse(path.read_text(encoding="utf-8")))
        if looks_at_a_type(call, within) and within not in LATE.get(file, ())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("def f(): msgspec.convert(x, T)", True),
        ("def f(): msgspec.json.decode(x, type=T)", True),
        ("def f(): msgspec.msgpack.decode(x, T)", True),
        ("def f(): msgspec.json.Decoder(T)", True),
        ("async def f(): codec.Converter[T](T)", True),
        ("def f(): msgspec.json.decode(x)", False),
        ("def f(): decoder.decode(x)", False),
        ("a = msgspec.json.Decoder(T)", False),
    ],
)
def test_what_is_looked_for(line: str, expected: bool):
    assert any(looks_at_a_type(*each) for each in calls(ast.parse(line))) is expected


def test_a_converter_does_what_msgspec_does():
    converter = Converter(VadOptions)

    assert converter.convert({"threshold": 0.25}) == VadOptions(threshold=0.25)
    with pytest.raises(msgspec.ValidationError, match="threshold"):
        converter.convert({"threshold": "loud"})
