"""Finds sentences that the notes can answer and that sound like a misheard one.

A small recogniser writes words that sound like the spoken ones: "gold" for "cold", "ramp it seat"
for "rabbits eat". Its probability for the right words means little, because rare words are
improbable in any audio, but their sounds are near to those of the transcript. Among several near
sentences, its probability decides. `know/asked.txt` contains the sentences: one kind per line,
alternatives in brackets, words of a table in braces. They form a network of sounds, in which the
cheapest paths are searched first; `REPLACED` and `_left_out` are the costs of differences. `n` is
the number of sounds of the transcript.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from parley.models.cascade.notes import knowledge
from parley.models.cascade.notes.clock import DAYS, MONTHS
from parley.models.cascade.numerals import in_words
from parley.models.cascade.tables import lines_of
from parley.models.cascade.voice.lexicon import SOUNDS, Lexicon

RATE, SURE_RATE, RATE_PER_DOUBT = 0.25, 0.05, 0.4
"""Maximum cost per sound of the transcript: the second for a confidence of 0, plus the third for
each unit below 0, but at most the first. Source: docs/log/pocket.md."""
SLACK = 1.6
"""Cost by which the start of a sentence may exceed its share."""
USUAL = 0.2
"""Usual cost per sound: paths that have cost less so far are followed first."""
CANDIDATES = 24
"""Maximum number of sentences that are found. With 48, five more of 319 are among them."""
MOST_STEPS = 3000
"""Maximum number of places that are visited, which takes 5 to 25 ms. With 6,000, no more of 213
misheard sentences are found."""
KEPT_STATES = 20_000
"""Maximum number of cached states of a worker's searches; most are needed again."""
_COURTESY = re.compile(
    r"((?:(?:hey|ok|okay|so|well|now|and|please|(?:tell me|do you know)(?= wh| how)"
    r"|(?:can|could|would) you(?= (?:please )?(?:tell|spell|count|say|name|give)))\b[, ]*)*)"
    r"(.*?)((?:[ ,.]+(?:please|thanks|thank you))?[?.! ]*)",
    re.I | re.S,
)
"""Polite words before a sentence, the sentence, and polite words after it."""
_SEGMENT = re.compile(r"\([^)]*\)|\{[^}]+\}|[^({]+")
_NO_SOUND = re.compile(f"[^{SOUNDS}]")
_VOWELS = "AIOWYiuæɑɔəɛɜɪʊʌᵊᵻ"
_ALIKE = (
    "kɡ td pb sz fv θð ʃʒ ʧʤ mn nŋ lɹ lw ɹw tɾ dɾ sʃ θf θs θt ðd ʧʃ ʧt ʤd vb tk pk zð hf".split()
)


def _replaced(one: str, other: str) -> float:
    if one == other:
        return 0.0
    both_vowels = one in _VOWELS and other in _VOWELS
    return 0.5 if both_vowels or one + other in _ALIKE or other + one in _ALIKE else 1.0


def _left_out(sound: str) -> float:
    if sound in "əhɪᵻtdjɹ":
        return 0.4 if sound == "ɹ" else 0.5
    return 0.7 if sound in _VOWELS else 0.9


REPLACED = {one: {other: _replaced(one, other) for other in SOUNDS} for one in SOUNDS}
LEFT_OUT = {sound: _left_out(sound) for sound in SOUNDS}


class _Node:
    """A node of a tree of sounds, which grows where it is searched.

    Args:
        left: the alternatives from here on: their remaining sounds, and themselves.

    Attributes:
        text: the first alternative that is complete here.
    """

    def __init__(self, left: Iterable[tuple[str, str]] = ()) -> None:
        self._left = list(left)
        self.text = next((choice for sounds, choice in self._left if not sounds), None)

    @functools.cached_property
    def after(self) -> dict[str, _Node]:
        """The nodes after each next sound."""
        found: dict[str, list[tuple[str, str]]] = {}
        for sounds, choice in self._left:
            if sounds:
                found.setdefault(sounds[0], []).append((sounds[1:], choice))
        return {sound: _Node(left) for sound, left in found.items()}

    @property
    def continues(self) -> bool:
        """True if there are nodes after this one."""
        return any(sounds for sounds, _ in self._left)

    def fitting(self, article: str) -> _Node:
        """The alternatives that fit an article: "a" or "an"."""
        is_an = article == "an"
        return _Node(one for one in self._left if not one[0] or (one[0][0] in _VOWELS) == is_an)


class _Place(NamedTuple):
    """A position in a kind of sentence: in segment `at`, at `node`, after the words `said`."""

    segments: tuple[str, ...]
    at: int
    node: _Node
    said: str


@dataclass(eq=False, slots=True)
class _State:
    """All places that the same sounds lead to; `after`: the states after each next sound, None
    until they are needed."""

    places: tuple[_Place, ...]
    after: dict[str, _State] | None = None


class Phrases:
    """All known sentences.

    Args:
        lexicon: sounds of words.
        common: words that may be asked about; those that are not English are omitted.
    """

    def __init__(self, lexicon: Lexicon, common: Iterable[str]) -> None:
        self._lexicon = lexicon
        self._tables = _tables()
        known = {*common, *knowledge.vocabulary()}
        self._tables["common"] = sorted(filter(lexicon.is_word, known))
        self._tables["common"] += self._tables["first name"]
        self._trees: dict[tuple[str, str], _Node] = {}
        self._states: dict[frozenset[_Place], _State] = {}
        kinds = list(map(segments_of, knowledge.lines_of("asked")))
        self._forms = re.compile("|".join(map(_form, kinds)), re.I)
        self._start = [place for kind in kinds for place in self._opened(kind, 0, "")]

    def near(self, text: str, confidence: float) -> list[tuple[str, float]]:
        """The sentences that sound most like a transcript, nearest first, with their costs.

        Args:
            confidence: of the transcript, see `Heard`.
        """
        courteous = _COURTESY.fullmatch(text)
        assert courteous is not None
        opening, asked, ending = courteous.groups()
        found: list[tuple[str, float]] = []
        heard = self._sounds(asked)
        n = len(heard)
        limit = n * min(RATE, SURE_RATE - RATE_PER_DOUBT * confidence)
        limits = [min(limit, SLACK + limit * done / max(1, n)) for done in range(n + 1)]
        if len(self._states) > KEPT_STATES:
            self._states.clear()
        order, visited = count(), set[tuple[_State, int]]()
        # Rank, a tie-breaker, cost, sounds, state.
        heap = [(0.0, next(order), 0.0, 0, self._state(self._start))]
        while heap and len(visited) < MOST_STEPS and len(found) < CANDIDATES:
            _, _, cost, done, state = heapq.heappop(heap)
            if (state, done) in visited:
                continue
            visited.add((state, done))
            if done == n:
                found += [(said, cost) for said in _complete(state)]
                if found and not cost:
                    break
            for price, step, after in self._steps(state, heard[done : done + 1]):
                total, place = cost + price, done + step
                if total <= limits[place]:
                    rank = total - USUAL * place
                    heapq.heappush(heap, (rank, next(order), total, place, after))
        found.sort(key=lambda one: one[1])
        return [(_behind(opening, said) + ending, cost) for said, cost in found]

    def has_form(self, text: str) -> bool:
        """True if a text has the form of a known sentence, with any English words in place of those
        of a table."""
        courteous = _COURTESY.fullmatch(text)
        found = courteous and self._forms.fullmatch(courteous[2])
        words = filter(None, found.groups()) if found else [""]
        return all(word.isdigit() or self._lexicon.is_word(word.lower()) for word in words)

    def _steps(self, state: _State, sound: str) -> Iterator[tuple[float, int, _State]]:
        """Possible steps for the next sound ("" for none): cost, number of sounds used, and the
        next state."""
        after = self._after(state)
        if sound:
            yield LEFT_OUT[sound], 1, state
            prices = REPLACED[sound]
            for other, following in after.items():
                yield prices[other], 1, following
        for other, following in after.items():
            yield LEFT_OUT[other], 0, following

    def _after(self, state: _State) -> dict[str, _State]:
        if state.after is None:
            found: dict[str, list[_Place]] = {}
            for place in state.places:
                for sound, node in place.node.after.items():
                    places = found.setdefault(sound, [])
                    if node.continues:
                        places.append(place._replace(node=node))
                    if node.text is not None:
                        said = f"{place.said} {node.text}".strip()
                        places += self._opened(place.segments, place.at + 1, said)
            state.after = {one: self._state(places) for one, places in found.items()}
        return state.after

    def _state(self, places: list[_Place]) -> _State:
        return self._states.setdefault(frozenset(places), _State(tuple(places)))

    def _opened(self, segments: tuple[str, ...], index: int, said: str) -> list[_Place]:
        """The places where segment `index` starts, and those of later segments if it may be
        omitted."""
        places = []
        while index < len(segments):
            article = said.rpartition(" ")[2]
            tree = self._tree(segments[index], article if article in ("a", "an") else "")
            places.append(_Place(segments, index, tree, said))
            if places[-1].node.text is None:
                return places
            index += 1
        return [*places, _Place(segments, index, _NOWHERE, said)]

    def _tree(self, segment: str, article: str) -> _Node:
        """The sounds of a segment's alternatives; after an article, only of those that fit it."""
        key = (segment, article)
        if key not in self._trees and article:
            self._trees[key] = self._tree(segment, "").fitting(article)
        elif key not in self._trees:
            choices = self.choices(segment)
            self._lexicon.learn(word for choice in choices for word in _words(choice))
            self._trees[key] = _Node((self._sounds(choice), choice) for choice in choices)
        return self._trees[key]

    def choices(self, segment: str) -> list[str]:
        """The alternatives of a segment; "" omits it."""
        words = segment.strip(" (){}")
        if segment[0] != "{":
            return words.split("|")
        if words not in self._tables:
            asked = (name for form in words.split("|") for name in knowledge.names()[form])
            names = dict.fromkeys(filter(None, asked))
            several = (f"{one}s" for one in names if one.islower() and one[-1] != "s")
            self._tables[words] = [*names, *several]
        return self._tables[words]

    def _sounds(self, text: str) -> str:
        return "".join(_plain(self._lexicon.sounds(word)) for word in _words(text))


_NOWHERE = _Node()


@functools.lru_cache(20_000)
def _plain(sounds: str) -> str:
    """The sounds of a word without stress. This needs single words: "a rabbit" would lose its r."""
    return _NO_SOUND.sub("", sounds).replace("ɜɹ", "ɜ").replace("əɹ", "ə")


def _words(text: str) -> list[str]:
    if text.isascii() and text.isalpha():
        return [text.lower()]
    text = text.replace("+", " plus ").replace(" - ", " minus ").replace("a hundred", "100")
    text = re.sub(r"\d{1,9}", lambda found: in_words(int(found[0])), text)
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower())


def segments_of(line: str) -> tuple[str, ...]:
    """The segments of a kind of sentence: words, alternatives in brackets, and names of tables in
    braces."""
    return tuple(one for one in _SEGMENT.findall(line) if one.strip())


def _form(segments: tuple[str, ...]) -> str:
    """A pattern that matches a kind of sentence, with groups for any words in place of those of
    tables."""
    parts = (one.strip(" ()") for one in segments)
    return " *".join(
        r"""["']?(\d+|[a-z]+(?:'[a-z]+)?)["']?""" if one[0] == "{" else f"(?:{one})"
        for one in parts
    )


def _behind(opening: str, said: str) -> str:
    is_within = opening and not re.match(r"I\b", said)
    return opening + (said[0].lower() if is_within else said[0].upper()) + said[1:]


def _complete(state: _State) -> Iterator[str]:
    """The sentences that are complete in this state."""
    return (one.said for one in state.places if one.node is _NOWHERE)


def _tables() -> dict[str, list[str]]:
    """Words for the names in braces that are not forms of questions in the tables."""
    return {
        "capital": list(knowledge.country_names().values()),
        "town": [one.rstrip(".") for one in knowledge.capitals().values()],
        "opposite": [*knowledge.opposites(), *knowledge.names()["opposite"]],
        "definition": list(knowledge.definitions()),
        "number": list(map(str, range(101))),
        "day": [one.capitalize() for one in DAYS],
        "month": [one.capitalize() for one in MONTHS],
        "letter": list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        "first name": [one.capitalize() for one in " ".join(lines_of("notes/names")).split()],
    }
