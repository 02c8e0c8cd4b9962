"""One name, one thing: public classes that share a name with a class of another module; and the
names of logged events.

The structs of the wire count, too: where two protocols have one word, one of them says which it is.
"""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "parley"

SHARED = {
    "Chunk": "of a chat's answer, as sent; of a context, in MiniCPM-o",
    "Conversation": "of a row, in two models that do not know each other",
    "Message": "of a WebSocket; of a chat as sent; of a conversation with its content",
    "PrefillJob": "of two models that do not know each other",
    "Recogniser": "what the cascade wants, and its Whisper that satisfies it",
    "ReplyJob": "of two models that do not know each other",
    "Stop": "the message; the end of a decoder process",
}
LIMIT = 8
SHARED_ALIASES_MOST = 32
"""Names of types that are an expression (`Mode = Literal[…]`) in one module and stand for
something else in another. Lower it when a change allows it."""
OF_EACH_PROTOCOL = {"ClientMessage", "ServerMessage"}


@functools.cache
def statements() -> list[tuple[str, list[ast.stmt]]]:
    """Name and statements of each module."""
    return [
        (path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text()).body)
        for path in sorted(SOURCE.rglob("*.py"))
    ]


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and module of each class that is counted."""
    for module, body in statements():
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


def test_few_names_mean_two_things_and_each_has_a_reason() -> None:
    modules = defaultdict(list)
    for name, module in public_classes():
        modules[name].append(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}

    assert shared.keys() == SHARED.keys(), shared
    assert len(SHARED) <= LIMIT


def aliases() -> Iterator[tuple[str, str]]:
    """Name and module of each type that is an expression."""
    for module, body in statements():
        for node in body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    pass
                case _:
                    continue
            is_type = len(name) > 1 and name[0].isupper() and not name.isupper()
            if is_type and not isinstance(value, ast.Call):
                yield name, module


def test_types_that_are_expressions_share_ever_fewer_names() -> None:
    modules = defaultdict(set)
    for name, module in (*public_classes(), *aliases()):
        modules[name].add(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    shared = {n: where for n, where in shared.items() if n not in SHARED.keys() | OF_EACH_PROTOCOL}

    assert len(shared) <= SHARED_ALIASES_MOST, shared


METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
SENTENCES = ("settings/reader.py",)
"""For people, before there is a log."""


def logged_events() -> Iterator[tuple[str, str]]:
    """Module and event of each call of a logger whose event is written there."""
    for module, body in statements():
        for node in (inner for each in body for inner in ast.walk(each)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("log" | "_log"), attr=method),
                    args=[ast.Constant(str(event)), *_],
                ) if method in METHODS:
                    yield module, event


def test_events_are_names_and_facts_are_fields() -> None:
    found = list(logged_events())

    assert len(found) > 100
    assert [
        one for one in found if not NAME.fullmatch(one[1]) and not one[0].startswith(SENTENCES)
    ] == []
