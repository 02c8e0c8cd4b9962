"""Facts that users have stated about themselves, found again in their own words.

Rules over the user's sentences, nothing learnt: "my name is Fiona", "my dog is called Rex", "I live
in Oslo", "remember that the key is under the mat". What was told last holds. A pure function of the
turns, so a conversation that is rolled back has forgotten by itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from parley.models.cascade.notes.said import latest, lowered
from parley.models.cascade.tables import blocks_of

_NAME = re.compile(
    r"\b(?:my name is|my name's|my name was|i am called|i'm called|call me|people call me|"
    r"(?:this|it) is (?=[A-Z])|the name is|the name's|i go by|my friends call me)\s+"
    r"(?!not\b|an?\b|the\b|later\b|back\b|when\b|if\b|again\b|to(?:day|night|morrow)\b|soon\b|in\b|at\b|on\b|maybe\b|your?\b|on[ec])([A-Za-z][\w'-]*(?:\s[A-Z][\w'-]*)?)",
)
_I_AM_NAME = re.compile(
    r"(?:^|[.!?] )(?:\W*(?i:hi|hello|hey|well|so|good (?:morning|evening|day))\W+)*(?i:i am|i'm) "
    r"([A-Z][a-z'-]+)\b"
)
_INTRODUCED = re.compile(
    r"^\W*(?:hi|hello|hey)\b(?: there)?\W+i(?:'m| am) ([a-z]{2,})(?<!\w{3}ed)(?<!ing)\W*$"
    r"|^\W*i(?:'m| am) ([a-z]{2,})(?<!\w{3}ed)(?<!ing)\W+(?:by the way|btw|nice to meet you"
    r"|and you)\b",
    re.I,
)
_NOT_BUT = re.compile(
    r"\b(?:no|sorry|wait|actually|i mean|correction|rather)\b[\s,.!]*(?:no |wait |sorry |actually "
    r"|i mean )*"
    r"(?:it's|it is|make that|i meant|i'm|my name is)? ?([A-Z][\w'-]+)\W*$"
)
"""`My name is Petra. No wait, it's Paula.`"""
_RENAMED = re.compile(
    r"(?:\bmy name(?:'s| is| was)? (?:not|isn't)|\bnot|\bthat(?:'s| is) not my name|\bmy name is "
    r"wrong"
    r"|\bi'm not|\bi am not) ?(?:[A-Z][\w'-]+)?[\s,.!:;]*(?:but |it's |it is |i'm |i am |my name "
    r"is |call me )*([A-Z][\w'-]+)\W*$"
    r"|^\W*(?:(?i:no|nope|actually|sorry|wait|wrong|it's)[\s,.!]+)+(?i:no |it's |it is |i'm |i am "
    r"|that's |just |with a k|)*"
    r"([A-Z][\w'-]+)(?i:,? please| not [A-Z]?\w+|,? with an? \w\W.*)?\W*$"
    r"|\b(?i:it's|it is|that's|i)(?i: actually| really)? (?i:spelled|spelt|written|meant|said) "
    r"([A-Z][\w'-]+)(?i:,? not [A-Z]?\w+|,? with an? \w\W.*)?\W*$"
    r"|\b(?i:not) [A-Z][\w'-]+[,.;!:]* (?:but )?([A-Z][\w'-]+)\W*$"
    r"|\b(?i:got|have|had|said|wrote|spelled) my name wrong\b.*?\b([A-Z][\w'-]+)\W*$"
)
"""Corrects a name given earlier."""
_CORRECTED = re.compile(
    r"^\W*(?:(?i:no|nope|actually|sorry|wait|i mean)[\s,.!]+)+(?i:it's |it is |i meant |i mean "
    r"|(?:his|her|its|their) name is |he's called |she's called |on |in )*"
    r"((?:[A-Z]|\d)[\w'-]*(?: \w+)?)\W*$|^\W*(?i:it's|it is|they are) ([a-z ]{2,24}) now\W*$"
)
_VALUE = re.compile(
    r"( is (?:called |on |in )?| at | are (?:from )?| live in | like | prefer | support ).+(?=\.$)"
)
"""Of a fact, in its sentence."""
_SENTENCE_END = re.compile(
    r"(?<=[.!?])\s+|,\s+(?:and )?(?=(?:what|who|how|where|when)\b.*\?)", re.I
)
_ASKS_BACK = re.compile(
    r"\b(?:what(?:'s| is) yours|and yours?|and you|your name|who are you)\W*$", re.I
)
_TO_KEEP = re.compile(
    r" is called | appointment "
    r"|^Your (?:\w+ )?(?:birthday|flight|train|number|password|code|address|favou?rite)\b"
    r"|^You (?:told me:|live|prefer|support|come|are from|were born|work|have|are allergic|parked)"
)
_FORGET = re.compile(r"\b(?:forget|delete|erase|don't remember) (?:about )?my name\b", re.I)
_NO_NAMES = frozenset(
    "sorry fine good tired sad happy here back from not so very really just going doing trying "
    "hungry bored okay ok ill sick sure afraid glad new lost curious excited interested confused "
    "looking free ready great well alright busy alone lonely".split()
)
_MY = re.compile(
    r"\b(?:my|our) ((?:\w+ ){0,3}?[\w'-]+?)(?:'s name)? (is called|is named|are called|is|are|was)"
    r" (?!it\b|not\b|what\b|there\b|that\b)([^.,;!?]+?)(?= and (?:my|our)\b|[.,;!?]|$)"
)
_ALSO = [
    (re.compile(pattern), key, sentence) for sentence, key, pattern in blocks_of("notes/memory")
]
_REMEMBER = re.compile(
    r"\b(?:please )?(?:remember|don't forget|do not forget|keep in mind|note) (?:that )?"
    r"((?:my|the|i|we|our|he|she|it)\b[^.!?]+)"
)
_ASKS = re.compile(
    r"\b(?:what|what's|who|whose|where|how (?:old|is|are|many|much|long)|which|when"
    r"|do you (?:still )?(?:know|remember|recall)|did i|do i|am i|was i|have i|"
    r"can you (?:tell|remember|recall)|tell me|remind me|say)\b"
)
_STOP = frozenset(
    "what whats what's is are was were the a an of my our your me i you do does did can could "
    "tell remember recall know again please who where which how when that it to in on for and told "
    "just "
    "said say s called name named remind now so still earlier before let have about us".split()
)
_MINE = re.compile(r"\b(?:my|i|i'm|me|our|mine)\b")
_OF_MINE = re.compile(
    r"^\W*(?:(?:and|so|ok|okay|please|(?:can|could) you|do you (?:still )?(?:know|remember)"
    r"|(?:tell|remind) me)\W+)*"
    r"(?:(?:what|where|when|who|which|how (?:old|many|much|long))\b.*\b(?:i|my|our)"
    r"|(?:do|did|am|was|have|had) i|(?:is|are|was) my)\b"
)
_OWNED = re.compile(
    r"\b(?i:my|our|(?:have|got|bought|adopted) an?) (?:(?:new|little|big|old|young|baby) )*(\w+)"
)
_THEIRS = re.compile(
    r"\b(?:s?he|it)(?:'s| is) (?:called|named) |\b(?:her|his|its) name(?:'s| is) ", re.I
)
"""`I got a cat. She's called Luna.`"""


@dataclass(frozen=True, slots=True)
class Told:
    """Facts told so far.

    Args:
        name: of the user, as it was written.
        facts: key words to a sentence about it, in the second person; the last one told is last.
        said: all sentences, as they were said.
    """

    name: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    said: Sequence[str] = ()

    def sentences(self, limit: int = 8) -> list[str]:
        """For a prompt: the name and the latest facts."""
        named = [f"The user's name is {self.name}."] if self.name else []
        return [*named, *list(self.facts.values())[-limit:]]


@dataclass(frozen=True, slots=True)
class _Read:
    """What one sentence contains, whatever was said before it."""

    forgets: bool
    name: str | None
    new_name: str | None
    corrected: str | None
    facts: tuple[tuple[str, str], ...]


# Every turn listens to all turns before it.
@functools.lru_cache(maxsize=2048)
def _read(plain: str) -> _Read:
    corrected = _CORRECTED.search(plain)
    return _Read(
        forgets=_FORGET.search(plain) is not None,
        name=_find_name(plain),
        new_name=_renamed(plain),
        corrected=(corrected[1] or corrected[2]) if corrected else None,
        facts=tuple(_facts(plain)),
    )


@functools.lru_cache(maxsize=2048)
def _sentences(text: str) -> tuple[str, ...]:
    return tuple(_SENTENCE_END.split(_straight(text)))


@functools.lru_cache(maxsize=2048)
def _owned(plain: str) -> str:
    """What the user owns, if the sentence names it."""
    owned = _OWNED.findall(plain)
    return owned[-1].lower() if owned else ""


def listen(texts: Iterable[str]) -> Told:
    """Facts in these sentences of the user."""
    name: str | None = None
    facts: dict[str, str] = {}
    said: list[str] = []
    named = ""
    for plain in (part for text in texts for part in _sentences(text)):
        named = _owned(plain) or named
        if plain.endswith("?"):
            continue
        if named:
            plain = _THEIRS.sub(f"my {named} is called ", plain)
        said.append(plain)
        read = _read(plain)
        if read.forgets:
            name = None
        found = read.name or (read.new_name if name else None)
        if found:
            name = found
        told = dict(read.facts)
        if facts and not told and not found and read.corrected:
            newest = next(reversed(facts))
            told = {newest: _VALUE.sub(rf"\g<1>{read.corrected}", facts[newest], count=1)}
        for key in told:
            facts.pop(key, None)
        facts |= told
    return Told(name, facts, said)


def _straight(text: str) -> str:
    return " ".join(latest(text).replace("’", "'").split())


def _renamed(plain: str) -> str | None:
    found = _RENAMED.search(_lower_lead(plain))
    new = next((one for one in found.groups() if one), None) if found else None
    return new if new and new.lower() not in _NO_NAMES else None


def introduced(text: str, earlier: Sequence[str]) -> str | None:
    """Reply to a user who gives only a name, or another name than before."""
    before, after = listen(earlier), listen([*earlier, text])
    if before.name and not after.name:
        return "All right, I have forgotten your name."
    told = dict(listen([text]).facts) | {
        key: one for key, one in after.facts.items() if one != before.facts.get(key)
    }
    kept = [f"{one[0].lower()}{one[1:-1]}" for one in told.values() if _TO_KEEP.search(one)]
    if kept and not text.rstrip().endswith("?"):
        return f"I will remember that {' and '.join(kept)}."
    is_told = listen([text]).name == after.name or before.name != after.name
    asks_back = bool(_ASKS_BACK.search(text))
    if after.name is None or not is_told or (text.rstrip().endswith("?") and not asks_back):
        return None
    if before.name is None:
        ours = " I am Parley." if asks_back else ""
        return f"Nice to meet you, {after.name}!{ours}"
    if before.name == after.name:
        return f"Yes, {after.name}, I remember."
    return f"All right, {after.name}. I will remember that."


def recall(text: str, told: Told) -> str | None:
    """The stored fact that `text` asks for; None if it asks for none.

    An empty string: it asks for something of the user's that was never told.
    """
    *_, asked = _SENTENCE_END.split(_straight(text))
    low = asked.lower()
    if not _ASKS.search(low):
        return None
    if not _MINE.search(low):
        return _remembered(low, told)
    if re.search(r"\b(?:what|who)\b.*\b(?:your|you)\b", low) and not re.search(
        r"\bmy\b|\bi\b|\bcall me\b", low
    ):
        return None
    if re.search(
        r"\bmy (?:own )?name\b|\bwho (?:am i|i am)\b(?! (?:talking|speaking|chatting|dealing))"
        r"|\bi(?:'m| am) called\b|\bam i called\b|\bdo you call me\b",
        low,
    ):
        return f"Your name is {told.name}." if told.name else ""
    words = _words(low)
    best, score = None, 0.0
    for key, sentence in told.facts.items():
        keys = {_stem(word) for word in key.split()}
        share = len(keys & words) / max(1, len(keys))
        if share >= max(score, 0.3):
            best, score = sentence, share
    if best is not None:
        return best
    if _OF_MINE.search(low) and (said := said_before(low, told)):
        return said
    if re.search(
        r"\b(?:what|who|where)(?:'s| is| are| was| do| did) (?:my|i)\b|\bhow old am i\b"
        r"|\bwhat am i allergic\b",
        low,
    ):
        return ""
    return None


_QUESTION = re.compile(r"\?\W*$|^\W*(?:and |so )?(?:what|where|when|who|which|how|did|do|was)\b")


def said_before(low: str, told: Told) -> str | None:
    """The sentence of the user's that has most of a question's words."""
    words = _words(low)
    if not words or not _QUESTION.search(low):
        return None
    said = [one for one in told.said if lowered(one) != low]
    best = max(said, key=lambda one: len(words & _words(lowered(one))), default="")
    return f"You said: {best}" if 2 * len(words & _words(lowered(best))) >= len(words) else None


def _remembered(low: str, told: Told) -> str | None:
    """Facts that the user asked to remember, about anyone."""
    words = _words(low)
    who = re.search(r"\bwho(?:'s| is) ([a-z][\w'-]+)\W*$", low)
    if who:
        named = [
            one for one in told.facts.values() if re.search(rf"\b{re.escape(who[1])}\b", one, re.I)
        ]
        if named:
            return named[-1]
    for key, sentence in told.facts.items():
        if sentence.startswith("You told me") and words and words <= set(key.split()):
            return sentence
    return None


def _find_name(plain: str) -> str | None:
    found = None
    for pattern in (_INTRODUCED, _NAME, _I_AM_NAME):
        for match in pattern.finditer(_lower_lead(plain) if pattern is _NAME else plain):
            word = (match[1] or match[match.lastindex or 1]).strip(" '-")
            if word.lower().split()[0] not in _NO_NAMES and len(word) > 1:
                found = word[0].upper() + word[1:]
    corrected = _NOT_BUT.search(plain) if found else None
    if corrected and corrected[1].lower() not in _NO_NAMES:
        found = corrected[1]
    return found


def _lower_lead(plain: str) -> str:
    """Lead words in lower case, the rest as it stands, so that names keep their capitals."""
    return re.sub(
        r"\b(?:My|I|I'm|Call|People|This|It|The|Name|Am|Go|Is)\b", lambda m: m[0].lower(), plain
    )


def _facts(plain: str) -> Iterable[tuple[str, str]]:
    low = plain.lower()
    for match in _MY.finditer(_keep_case(plain)):
        what, verb, value = match[1].strip(), match[2], _trim(match[3])
        if (
            what in ("name", "friends", "question", "answer", "turn", "goodness", "god")
            or not value
        ):
            continue
        if "'s name" in match[0]:
            verb = "is called"
        yield what.lower(), f"Your {what} {verb.replace('named', 'called')} {value}."
    for pattern, key, sentence in _ALSO:
        for match in pattern.finditer(_keep_case(plain)):
            values = [_trim(value) for value in match.groups()]
            if all(values):
                yield _also_key(key, values), sentence.format(*values)
    remembered = _REMEMBER.search(_keep_case(plain))
    if remembered and not _MY.search(low):
        what = _trim(remembered[1])
        yield " ".join(sorted(_words(what.lower()))) or "that", f"You told me: {what}."


def _also_key(key: str, values: list[str]) -> str:
    match key:
        case "family":
            return _family_key(values[0].lower())
        case "have":
            return f"{values[0].lower()} have"
    kinds = {"born": "born birthday old", "work": "work job", "job": "work job",
             "parked": "parked park car"}  # fmt: skip
    return kinds.get(key, key)


_KINDS: Final = (
    ("brother sister", "sibling"),
    ("son daughter child children", "child children kid"),
    ("dog cat", "pet"),
)


def _family_key(said: str) -> str:
    """The nouns, and what they are together."""
    words = [_stem(word) for word in said.split()]
    named = [word for one, _ in _KINDS for word in one.split() if word in words]
    kinds = [kind for one, kind in _KINDS if any(word in words for word in one.split())]
    return " ".join([*named, *kinds]) or said


def _keep_case(plain: str) -> str:
    return re.sub(
        r"\b(?:My|Our|I|I'm|Remember|Please|Don't|Note|Keep)\b", lambda m: m[0].lower(), plain
    )


def _trim(value: str) -> str:
    """A value ends where the next thought begins."""
    cut = re.split(
        r"\b(?:and (?:my|i|what|can|do|you)|but|because|so|okay|by the way|btw)\b", value
    )[0]
    return re.sub(r"\b(?:my|our)\b", "your", " ".join(cut.split()).strip(" '\"-"))


def _words(low: str) -> set[str]:
    return {_stem(word) for word in re.findall(r"[a-z0-9']+", low) if word not in _STOP}


def _stem(word: str) -> str:
    word = word.removesuffix("'s")
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    return {
        "eat": "food",
        "favorite": "favourite",
        "color": "colour",
        "worked": "work",
        "living": "job",
        "profession": "job",
    }.get(word, word)
