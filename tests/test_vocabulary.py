"""One name, one thing: public classes that share a name with a class of another module.

Not counted are the structs of the wire (those with a tag, in `parley/protocol`): they are called as
the protocol calls them, once per dialect, and so they are called in the schemas and in TypeScript.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "parley"

SHARED = {
    "Conversation": "of a row, in two models that do not know each other",
    "Message": "of a WebSocket; of a request as sent, ours and OpenAI's; of a conversation",
    "PrefillJob": "of two models that do not know each other",
    "Recogniser": "what the cascade wants, and its Whisper that satisfies it",
    "ReplyJob": "of two models that do not know each other",
    "Request": "the published chat request, and a command for a slot",
}
LIMIT = 8


def is_wire_struct(node: ast.ClassDef) -> bool:
    return any(keyword.arg == "tag" for keyword in node.keywords)


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and module of each class that is counted."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if module.startswith("protocol/") and is_wire_struct(node):
                    continue
                yield node.name, module


def test_few_names_mean_two_things_and_each_has_a_reason() -> None:
    modules = defaultdict(list)
    for name, module in public_classes():
        modules[name].append(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}

    assert shared.keys() == SHARED.keys(), shared
    assert len(SHARED) <= LIMIT
