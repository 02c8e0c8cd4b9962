"""One name, one thing: public classes that share a name with a class of another module; and the
names of logged events.

The structs of the wire count, too: where two protocols have one word, one of them says which it is.
"""

import re
from collections import defaultdict
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


CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)
ALIAS = re.compile(
    r"^([A-Z]\w*)(?:: (?:Final|TypeAlias)\b[^=\n]*)? = (?![\w.]+(?:\[.*\])?\()", re.MULTILINE
)
"""A type that is an expression, not a call."""
EVENT = re.compile(
    r"""(?<![\w.])_?log\.(?:debug|info|warning|error|exception|critical)\(\s*"([^"]*)\""""
)
"""An event that is written where it is logged."""


def found(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """What the pattern finds in each module, with the module's name. Syntax trees of all modules
    took two seconds."""
    return [
        (name, path.relative_to(SOURCE).as_posix())
        for path in sorted(SOURCE.rglob("*.py"))
        for name in pattern.findall(path.read_text())
    ]


def test_few_names_mean_two_things_and_each_has_a_reason() -> None:
    modules = defaultdict(list)
    for name, module in found(CLASS):
        modules[name].append(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}

    assert shared.keys() == SHARED.keys(), shared
    assert len(SHARED) <= LIMIT


def test_types_that_are_expressions_share_ever_fewer_names() -> None:
    modules = defaultdict(set)
    aliases = [one for one in found(ALIAS) if len(one[0]) > 1 and not one[0].isupper()]
    assert len(aliases) > 100
    for name, module in (*found(CLASS), *aliases):
        modules[name].add(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    shared = {n: where for n, where in shared.items() if n not in SHARED.keys() | OF_EACH_PROTOCOL}

    assert len(shared) <= SHARED_ALIASES_MOST, shared


NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
SENTENCES = "settings/reader.py"
"""For people, before there is a log."""


def test_events_are_names_and_facts_are_fields() -> None:
    events = found(EVENT)

    assert len(events) > 100
    assert [one for one in events if not NAME.fullmatch(one[0]) and one[1] != SENTENCES] == []
