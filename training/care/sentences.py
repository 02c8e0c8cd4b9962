"""The sentences that the judge of danger is taught, with their kinds, and variants of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from parley.models.cascade.notes.danger import MOST_WORDS, words_of
from training.cascade.dialogues import draw

HERE = Path(__file__).parent
EVERYDAY, ORDINARY, PROSE = 1000, 4000, 1500
BEFORE = (
    "honestly|well|i think|um|so|hey parley|listen|to be honest|lately|sometimes|you know|look|"
    "please|i mean|and|but|yeah|i just wanted to say that|the thing is|you have to know something|"
    "okay so"
).split("|")
AFTER = (
    "today|again|lately|please|right now|you know|i guess|really|parley|sometimes|man|bro|lol|ok|"
    "to be honest|i think|anymore"
).split("|")
SHARES = (4.0, 4.0, 1.5, 1.5)
"""How often variants start from sentences of danger, from harmless ones of `lines.txt`, from other
harmless ones, and from unlabelled ones."""

Line = tuple[str, str, str]
"""Kind, family, text."""


def lines(path: Path = HERE / "lines.txt") -> list[Line]:
    """Sentences with their kind and family."""
    found: list[Line] = []
    kind = family = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("== "):
            _, kind, family = line.split(maxsplit=2)
        elif line.strip() and not line.startswith("#"):
            found.append((kind, family, line.strip()))
    return found


def everyday() -> list[Line]:
    """What else people say: turns that the language model was taught."""
    chance = Random(7)
    found: dict[str, None] = {}
    while len(found) < EVERYDAY:
        found |= dict.fromkeys(turn.heard for turn in draw(chance).turns)
    return [("none", "dialogues", text) for text in found if words_of(text)]


def ordinary() -> list[Line]:
    """What people say in passing, drawn from the forms of `ordinary.txt`."""
    chance = Random(7)
    forms = [
        one for one in (HERE / "ordinary.txt").read_text("utf-8").splitlines() if one[0] != "#"
    ]
    found: dict[str, None] = {}
    while len(found) < ORDINARY:
        text = re.sub(
            r"\{([^}]*)\}", lambda parts: chance.choice(parts[1].split("|")), chance.choice(forms)
        )
        found[" ".join(text.split())] = None
    return [("none", "ordinary", text) for text in found]


def prose() -> list[Line]:
    """Sentences of this repository's pages and of the stock of knowledge: none speaks of danger."""
    root = HERE.parents[1]
    pages = [*root.glob("docs/*/*.md"), *root.glob("src/parley/models/cascade/know/*.txt")]
    found: dict[str, None] = {}
    for page in sorted(pages):
        plain = re.sub(r"`[^`]*`|https?://\S+", "", page.read_text("utf-8"))
        for sentence in re.split(r"(?<=[.!?])\s|[|\n]", plain):
            if 3 <= len(words_of(sentence)) <= 25:
                found[sentence.strip()] = None
    picked = Random(7).sample(list(found), min(PROSE, len(found)))
    return [("none", "prose", text) for text in picked]


def all_lines() -> list[Line]:
    return [*lines(), *everyday(), *ordinary(), *prose()]


def unlabelled(path: Path) -> list[list[str]]:
    """The sentences of a text, as words."""
    pieces = re.split(r"(?<=[.!?])\s+|\n", path.read_text("utf-8", "replace"))
    found = (words_of(re.sub(r"@\w+|https?\S+|&\w+;", " ", one)) for one in pieces)
    return [words for words in found if 2 <= len(words) <= 28]


def variants(
    taught: Sequence[Line],
    others: Sequence[list[str]],
    count: int,
    alike: Callable[[str, Random], str],
) -> list[str]:
    """Sentences that differ from the given ones: words replaced, halves joined, words left out.

    Most make little sense. What the teacher thinks of them shows the student where its limits are.

    Args:
        others: unlabelled sentences.
        count: number of sentences, including the given ones.
        alike: returns a word with a similar meaning.
    """
    chance = Random(11)
    pools: list[list[list[str]]] = [[], [], [], list(others)]
    for kind, family, text in taught:
        is_by_hand = family not in ("dialogues", "ordinary", "prose", "strangers")
        pools[0 if kind != "none" else 1 if is_by_hand else 2].append(words_of(text))
    usual = [word for pool in pools for words in pool for word in words]

    def drawn() -> list[str]:
        return chance.choice(chance.choices(pools, SHARES)[0])

    def varied(words: list[str]) -> list[str]:
        words, way, other = list(words), chance.random(), drawn()
        if way < 0.45:
            for _ in range(chance.choice((1, 1, 2, 3))):
                place = chance.randrange(len(words))
                is_near = chance.random() < 0.7
                words[place] = alike(words[place], chance) if is_near else chance.choice(usual)
        elif way < 0.7:
            words = words[: chance.randint(1, len(words))] + other[chance.randrange(len(other)) :]
        elif way < 0.8:
            words = [word for word in words if chance.random() > 0.15] or words
        elif way < 0.88:
            words = words + other if chance.random() < 0.5 else other + words
        elif way < 0.94:
            words = words_of(chance.choice(BEFORE)) + words
        else:
            words = words + words_of(chance.choice(AFTER))
        return words[:MOST_WORDS]

    found = {" ".join(words): None for pool in pools for words in pool if words}
    while len(found) < count:
        words = varied(drawn())
        if chance.random() < 0.3:
            words = varied(words)
        found[" ".join(words)] = None
    return list(found)
