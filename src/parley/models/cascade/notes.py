"""Notes that go with what the user said: sums, spelling, the calendar, a small stock of facts.

A language model of 135 M parameters converses, but neither reckons nor knows much. What a few
lines of code or a table know for certain is put beside the user's words as a note, and the model
was taught to answer from the note, and to say that it does not know where there is none
(`training/cascade/dialogues.py` makes its examples with this very module). Large models behind an
endpoint get no notes.

Pure text: knows nothing of models. The stock is the text files in `know/`, all of them our own.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

from parley.models.cascade import manners, memory
from parley.models.cascade.numerals import as_digits

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
_MONTH_DAYS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
COUNT_LIMIT = 30
"""Numbers that are counted aloud at most."""

_STOCKS = {
    "jokes": r"\bjokes?\b|\bmake me laugh\b|\b(?:something|anything) funny\b",
    "poems": r"\bpoems?\b|\brhyme for me\b|\bverses?\b|\bpoetry\b",
    "riddles": r"\briddles?\b|\bpuzzles? for me\b",
    "stories": r"\bstor(?:y|ies)\b|\bfairy tale\b",
    "tongue_twisters": r"\btongue.?twisters?\b",
}
_WANTS = re.compile(
    r"\b(?:tell|know|say|give|read|recite|write|make|hear|another|one more|got|have|like|let's|do)\b"
)
_NUMBER = r"(-?\d+(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Said:
    """One earlier turn of the user, as the notes need it."""

    text: str


def note_for(
    text: str, earlier: Sequence[str] = (), *, seed: int = 0, answers: Sequence[str] = ()
) -> str | None:
    """The note for a sentence of the user's; None when there is nothing to note.

    Args:
        earlier: what the user said before, oldest first; for what was told, for follow-ups and to
            tell another joke than last time.
        seed: which joke comes first.
        answers: what was answered before, oldest first; for who asks to hear it again.
    """
    repeated = manners.again(text, answers)
    fixed = repeated if repeated is not None else manners.always(text)
    if fixed is not None:
        return fixed
    # "My name is Anna. What is my name?" tells before it asks.
    just_now = [one for one in re.split(r"(?<=[.!?])\s+", text.strip())[:-1] if one[-1] != "?"]
    told = memory.recall(text, memory.listen([*earlier, *just_now]))
    if told:
        return told
    found = _plain(text, earlier, seed)
    if found is None and told is not None:
        return "You have not told me that."
    if found is None and earlier:
        followed = _follow_up(text, earlier[-1])
        if followed is not None:
            found = _plain(followed, earlier, seed)
    return found


def _plain(text: str, earlier: Sequence[str], seed: int) -> str | None:
    low = " ".join(re.sub(r"[’`]", "'", text.lower()).split())
    for tool in (_sum, _compare, _count, _spelling, _letters, _calendar, _capital, _opposite):
        found = tool(low)
        if found is not None:
            return found
    drawn = _stock(low, earlier, seed)
    return drawn or _fact(low) or _definition(low)


def _follow_up(text: str, before: str) -> str | None:
    """`And of Spain?` after `What is the capital of France?` is a question about a capital."""
    found = re.match(
        r"^\W*(?:and|what about|how about|and what about|okay and|or)\b[\s,]*(?:of|for|is|the)?\s*(.+)$",
        text.strip(),
        re.I,
    )
    if not found:
        return None
    rest = found[1].strip(" ?.!")
    low = before.lower()
    for pattern, form in (
        (r"\bcapital\b", "what is the capital of {}"),
        (r"\bopposite\b", "what is the opposite of {}"),
        (r"\bspell", "how do you spell {}"),
        (r"\bcome.? after\b", "what comes after {}"),
        (r"\bcome.? before\b", "what comes before {}"),
        (r"\bhow many legs\b", "how many legs does {} have"),
        (r"\bcolou?r\b", "what colour is {}"),
        (r"\beat\b", "what does {} eat"),
        (r"\bsounds?\b|\bsay\b", "what sound does {} make"),
        (r"\bbaby\b", "what is a baby {} called"),
        (r"\bwhat is an?\b", "what is a {}"),
    ):
        if re.search(pattern, low):
            return form.format(rest)
    operator = re.search(r"\b(plus|minus|times|divided by)\b", as_digits(low))
    if operator and re.search(r"\d", as_digits(rest)):
        return rest
    return None


# Reckoning.

_OPERATORS = {
    "plus": "+", "+": "+", "and": "+", "added to": "+", "minus": "-", "-": "-", "–": "-",
    "less": "-", "take away": "-", "times": "*", "multiplied by": "*", "x": "*", "*": "*",
    "×": "*", "divided by": "/", "over": "/", "/": "/", "÷": "/",
}  # fmt: skip
_NAMES = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
_BINARY = re.compile(
    rf"{_NUMBER}((?:\s*(?:plus|\+|added to|minus|-|–|take away|times|multiplied by|x|\*|×|"
    rf"divided by|/|÷)\s*{_NUMBER.replace('(', '(?:', 1)})+)"
)
_PART = re.compile(
    rf"\s*(plus|\+|added to|minus|-|–|take away|times|multiplied by|x|\*|×|divided by|/|÷)\s*{_NUMBER}"
)
_FORMS = (
    (re.compile(rf"\b(?:add|sum of)\s+{_NUMBER} (?:and|to|plus) {_NUMBER}"), "+", False),
    (re.compile(rf"\bhow much (?:is|are) {_NUMBER} and {_NUMBER}"), "+", False),
    (
        re.compile(
            rf"\bwhat(?:'s| is| do| does)? {_NUMBER} and {_NUMBER}(?: make| together| add)?"
        ),
        "+",
        False,
    ),
    (re.compile(rf"\b(?:subtract|take(?: away)?)\s+{_NUMBER} (?:away )?from {_NUMBER}"), "-", True),
    (re.compile(rf"\bdifference between {_NUMBER} and {_NUMBER}"), "-", False),
    (re.compile(rf"\b{_NUMBER} from {_NUMBER}\b"), "-", True),
    (
        re.compile(rf"\b(?:multiply|product of) {_NUMBER} (?:by|and|with|times) {_NUMBER}"),
        "*",
        False,
    ),
    (re.compile(rf"\bdivide {_NUMBER} by {_NUMBER}"), "/", False),
)
_SINGLE: tuple[tuple[re.Pattern[str], str, Callable[[float], float]], ...] = (
    (re.compile(rf"\b(?:double|twice)(?: of)? {_NUMBER}"), "Double {} is {}.", lambda v: 2 * v),
    (re.compile(rf"\b(?:half|the half)(?: of)? {_NUMBER}"), "Half of {} is {}.", lambda v: v / 2),
    (re.compile(rf"\bsquare root of {_NUMBER}"), "The square root of {} is {}.", lambda v: v**0.5),
    (re.compile(rf"{_NUMBER} squared|\bsquare of {_NUMBER}"), "{} squared is {}.", lambda v: v * v),
)


def _number(value: float) -> str:
    if abs(value - round(value)) < 1e-9:
        return str(round(value))
    return f"{value:.2f}".rstrip("0").rstrip(".")


_LIST = re.compile(
    rf"\b(?:add(?: up| together)?|(?:the )?(?:sum|total) of)\s+{_NUMBER}((?:,? (?:and |plus )?-?\d+(?:\.\d+)?){{2,}})"
)
_HAVE = re.compile(r"\b(?:have|had|has|got|buy|bought|are|were|with|start with)\s+\D{0,12}?(\d+)\b")
_LESS = re.compile(
    r"\b(?:eat|ate|spend|spent|lose|lost|give|gave|sell|sold|use|used|drop|dropped|break|broke|drink|drank|take|took|"
    r"remove|leave|left|go|went|fly|flew|throw|threw)\w*\s+(?:away |off )?(\d+)\b|\b(\d+) (?:of them )?(?:leave|fly away|go away|are gone|break)\b"
)
_MORE = re.compile(
    r"\b(?:get|got|find|found|buy|bought|receive|received|win|won|pick|add|added|gets?|come|came)\w*\s+(\d+)(?: more)?\b"
)


def _story(text: str) -> str | None:
    """`I have 15 euros and spend 6, how much is left?`"""
    if not re.search(r"\bhow (?:many|much)\b|\bwhat(?:'s| is) left\b|\bremain", text):
        return None
    have = _HAVE.search(text)
    if not have or len(re.findall(r"\d+", text)) != 2:
        return None
    rest = text[have.end() :]
    less, more = _LESS.search(rest), _MORE.search(rest)
    if less:
        return _chain(have[1], [("minus", less[1] or less[2])])
    return _chain(have[1], [("plus", more[1])]) if more else None


def _sum(low: str) -> str | None:
    text = as_digits(low)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    listed = _LIST.search(text)
    if listed:
        return _chain(listed[1], [("plus", n) for n in re.findall(r"-?\d+(?:\.\d+)?", listed[2])])
    story = _story(text)
    if story:
        return story
    chain = _BINARY.search(text)
    if chain:
        return _chain(chain[1], _PART.findall(chain[2]))
    for pattern, operator, is_swapped in _FORMS:
        found = pattern.search(text)
        if found:
            first, second = found[1], found[2]
            if is_swapped:
                first, second = second, first
            return _chain(first, [(_NAMES[operator], second)])
    percent = re.search(rf"{_NUMBER}\s*(?:percent|per cent|%) of {_NUMBER}", text)
    if percent:
        value = float(percent[1]) * float(percent[2]) / 100
        return f"{percent[1]} percent of {percent[2]} is {_number(value)}."
    for pattern, form, work in _SINGLE:
        found = pattern.search(text)
        if found:
            value = float(next(group for group in found.groups() if group))
            if value >= 0:
                return form.format(_number(value), _number(work(value)))
    return None


def _chain(first: str, parts: Sequence[tuple[str, str]]) -> str | None:
    terms: list[float] = [float(first)]
    said = [_number(float(first))]
    signs: list[str] = []
    for word, number in parts:
        operator, value = _OPERATORS[word], float(number)
        said += [_NAMES[operator], _number(value)]
        if operator in "*/":
            if operator == "/" and value == 0:
                return "Nothing can be divided by zero."
            terms[-1] = terms[-1] * value if operator == "*" else terms[-1] / value
        else:
            signs.append(operator)
            terms.append(value)
    total = terms[0]
    for sign, value in zip(signs, terms[1:], strict=True):
        total = total + value if sign == "+" else total - value
    if abs(total) > 1e12:
        return None
    return f"{' '.join(said)} is {_number(total)}."


def _compare(low: str) -> str | None:
    text = as_digits(low)
    found = re.search(
        rf"\b(bigger|larger|greater|more|higher|smaller|less|lower)\b\D*?{_NUMBER} or {_NUMBER}",
        text,
    )
    if found:
        first, second = float(found[2]), float(found[3])
        if first == second:
            return "They are equal."
        wants_low = found[1] in ("smaller", "less", "lower")
        best = min(first, second) if wants_low else max(first, second)
        return f"{_number(best)} is {'smaller' if wants_low else 'bigger'}."
    found = re.search(
        rf"\bis {_NUMBER} (?:bigger|larger|greater|more|higher|(smaller|less|lower)) than {_NUMBER}",
        text,
    )
    if found:
        first, second = float(found[1]), float(found[3])
        is_so = first < second if found[2] else first > second
        order = "smaller" if first < second else "bigger"
        if first == second:
            return "No, they are equal."
        return f"{'Yes' if is_so else 'No'}, {_number(first)} is {order} than {_number(second)}."
    found = re.search(r"\bis (\d+) (?:an? )?(even|odd)\b", text)
    if found:
        kind = "odd" if int(found[1]) % 2 else "even"
        return f"{'Yes' if kind == found[2] else 'No'}, {found[1]} is {kind}."
    return None


def _count(low: str) -> str | None:
    text = as_digits(low)
    if not re.search(r"\bcount\b|\bcounting\b|\bnumbers from\b", text):
        return None
    found = re.search(r"\bfrom (\d+)(?: down)? (?:to|until|till|up to) (\d+)", text)
    if found:
        first, last = int(found[1]), int(found[2])
    else:
        found = re.search(r"\b(?:back(?:ward)?s?|down)(?: from)? (\d+)", text)
        if found:
            first, last = int(found[1]), 1
        else:
            found = re.search(r"\b(?:to|until|till) (\d+)", text)
            if not found:
                return None
            first, last = 1, int(found[1])
            if re.search(r"\bbackwards?\b|\bdown\b", text):
                first, last = last, 1
    step = 1 if last >= first else -1
    if abs(last - first) >= COUNT_LIMIT:
        return f"I can count up to {COUNT_LIMIT} numbers at a time."
    return ", ".join(str(value) for value in range(first, last + step, step)) + "."


# Letters.


def _spelling(low: str) -> str | None:
    found = re.search(
        r"\b(?:spell(?:ing of)?(?: out)?(?: me)?(?: the)?(?: word)?(?: for me)?(?: the)?(?: word)?)[\s:,\"']+"
        r"([a-z'-]+)[\"']?\W*(?:for me|please|by letters?|letter by letter)?\W*$",
        low,
    ) or re.search(
        r"\bhow (?:is|do you write)(?: the word)? ([a-z'-]+)(?: spelled| spelt|$|\?)", low
    )
    if not found:
        return None
    word = found[1].strip("'-")
    if (
        word in ("it", "that", "this", "me", "you", "words", "word", "please", "life", "everything")
        or len(word) < 2
    ):
        return None
    return f"{word.capitalize()} is spelled {', '.join(word.replace(chr(39), '').upper())}."


def _letters(low: str) -> str | None:
    found = re.search(
        r"\bhow many letters (?:are (?:there )?in|does|has|in) (?:the word )?([a-z]+)", low
    )
    if found and found[1] not in ("the", "alphabet", "english"):
        word = found[1]
        return f"{word.capitalize()} has {len(word)} letters."
    found = re.search(
        r"\b(?:letter|what) (?:comes )?(after|before|follows)(?: the letter)? ([a-z])\b\W*$", low
    )
    if found:
        place = ord(found[2]) - 97 + (-1 if found[1] == "before" else 1)
        if 0 <= place < 26:
            return f"{found[1].capitalize()} {found[2].upper()} comes {chr(97 + place).upper()}."
        return "The alphabet ends there."
    found = re.search(r"\bfirst letter (?:of|in) (?:the (?:word|alphabet)\s?)?([a-z]*)", low)
    if found:
        return (
            f"The first letter of {found[1]} is {found[1][0].upper()}."
            if found[1]
            else "The first letter is A."
        )
    if re.search(r"\b(?:say|tell me|recite|sing|know)\b.*\balphabet\b", low):
        return "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z."
    return None


# The calendar.


def _calendar(low: str) -> str | None:
    for names, noun in ((DAYS, "day"), (MONTHS, "month")):
        joined = "|".join(name.lower() for name in names)
        found = re.search(rf"\b(after|before|follows|precedes)\s+({joined})\b", low) or re.search(
            rf"\b(next|previous) {noun} (?:to|after|from) ({joined})\b", low
        )
        if found and (noun in low or re.search(r"\bwhat\b|\bwhich\b|\bcome", low)):
            index = [name.lower() for name in names].index(found[2])
            is_before = found[1] in ("before", "precedes", "previous")
            other = names[(index + (-1 if is_before else 1)) % len(names)]
            return f"{'Before' if is_before else 'After'} {names[index]} comes {other}."
        between = re.search(rf"\bbetween ({joined}) and ({joined})\b", low)
        if between:
            lows = [name.lower() for name in names]
            first, second = lows.index(between[1]), lows.index(between[2])
            if (second - first) % len(names) == 2:
                return f"{names[(first + 1) % len(names)]} is between them."
    found = re.search(
        rf"\bhow many days (?:are (?:there )?in|does|has|in) ({'|'.join(m.lower() for m in MONTHS)})\b",
        low,
    )
    if found:
        month = found[1].capitalize()
        extra = ", and 29 in a leap year" if month == "February" else ""
        return f"{month} has {_MONTH_DAYS[month]} days{extra}."
    found = re.search(
        r"\b(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|last) (day of the week|month)",
        low,
    )
    if found:
        order = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
        names = DAYS if found[2].startswith("day") else MONTHS
        place = len(names) - 1 if found[1] == "last" else order.index(found[1])
        if place < len(names):
            return f"The {found[1]} {found[2]} is {names[place]}."
    if (
        re.search(
            r"\b(?:name|list|tell me|say|what are|which are)\b.*\bdays of the week\b|\bdays of the week\b\W*$",
            low,
        )
        and "how many" not in low
    ):
        return f"{', '.join(DAYS[:-1])} and {DAYS[-1]}."
    if (
        re.search(r"\b(?:name|list|tell me|say|what are|which are)\b.*\bmonths\b", low)
        and "how many" not in low
    ):
        return f"{', '.join(MONTHS[:-1])} and {MONTHS[-1]}."
    return None


# The stock.


def _read(name: str) -> list[str]:
    text = (resources.files("parley.models.cascade") / "know" / f"{name}.txt").read_text("utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


@functools.cache
def capitals() -> dict[str, str]:
    """Country, lower case, to its capital."""
    return {
        c.strip().lower(): t.strip()
        for c, _, t in (line.partition(":") for line in _read("capitals"))
    }


@functools.cache
def country_names() -> dict[str, str]:
    """Lower case to the usual writing."""
    return {
        line.partition(":")[0].strip().lower(): line.partition(":")[0].strip()
        for line in _read("capitals")
    }


@functools.cache
def opposites() -> dict[str, str]:
    """Word to its opposite, both ways; the first line that names a word holds."""
    table: dict[str, str] = {}
    for line in _read("opposites"):
        first, second = line.split()
        table.setdefault(first, second)
    for line in _read("opposites"):
        first, second = line.split()
        table.setdefault(second, first)
    return table


@functools.cache
def definitions() -> dict[str, str]:
    """Head word to its sentence."""
    return {
        h.strip(): s.strip() for h, _, s in (line.partition(":") for line in _read("definitions"))
    }


@functools.cache
def facts() -> list[tuple[frozenset[str], str]]:
    """Key words and the sentence; more key words come first."""
    rows = [line.partition("|") for line in _read("facts")]
    table = [(frozenset(_keys(keys)), sentence.strip()) for keys, _, sentence in rows]
    return sorted(table, key=lambda row: -len(row[0]))


@functools.cache
def stock(name: str) -> list[str]:
    """Jokes, poems, riddles, stories or tongue twisters."""
    return _read(name)


def _the(country: str) -> str:
    needs = ("united ", "usa", "netherlands", "philippines", "bahamas", "gambia", "maldives",
             "czech r", "dominican", "ivory")  # fmt: skip
    name = country_names()[country]
    return f"the {name}" if country.startswith(needs) else name


_LAND = re.compile(r"\b(?:capital|capitol)(?: city)?\b")
_ALIASES = {
    "us": "united states", "u.s": "united states", "u.s.a": "usa", "the states": "united states",
    "uk": "united kingdom", "u.k": "united kingdom", "korea": "south korea", "the uk": "united kingdom",
}  # fmt: skip


def _capital(low: str) -> str | None:
    if not _LAND.search(low):
        return _country_of(low)
    table = capitals()
    yes_no = re.search(r"^\W*is ([a-z' ]+?) the capital(?: city)? of (?:the )?([a-z ]+)", low)
    if yes_no:
        land = _ALIASES.get(yes_no[2].strip(), yes_no[2].strip())
        if land in table:
            is_so = table[land].lower() == yes_no[1].strip()
            return f"{'Yes' if is_so else 'No'}, the capital of {_the(land)} is {table[land].rstrip('.')}."
        return None
    of = re.search(r"\b(?:capital|capitol)(?: city)?(?: of| in| for)? (?:the )?([a-z. ]+)", low)
    if of:
        land = of[1].strip(" .")
        for candidate in (
            land,
            _ALIASES.get(land, ""),
            re.sub(r"\b(?:please|then|called|again)\b", "", land).strip(),
        ):
            if candidate in table:
                return _is_capital(candidate)
        # Misspelt, or misheard; the answer says which country was taken.
        close = difflib.get_close_matches(land, table, 1, 0.8)
        if close:
            return _is_capital(close[0])
    for land in sorted(table, key=len, reverse=True):
        if re.search(rf"\b{re.escape(land)}(?:'s)?\b", low):
            return _is_capital(land)
    for town, land in ((t.lower(), c) for c, t in table.items()):
        if re.search(rf"\b{re.escape(town)}\b", low) and re.search(
            r"\b(?:which|what|whose) (?:country|capital)|\bcapital of what\b", low
        ):
            return f"{table[land]} is the capital of {_the(land)}."
    return None


def _is_capital(land: str) -> str:
    return f"The capital of {_the(land)} is {capitals()[land]}".rstrip(".") + "."


def _country_of(low: str) -> str | None:
    found = re.search(
        r"\b(?:where is|where's|which country is|what country is|in which country is|in what country is)"
        r" ([a-z' .-]+?)(?: in| located| found)?\W*$",
        low,
    )
    if not found:
        return None
    for land, town in capitals().items():
        if town.lower() == found[1].strip() and land != found[1].strip():
            return f"{town} is in {_the(land)}."
    return None


def _opposite(low: str) -> str | None:
    found = re.search(
        r"\bopposites? (?:of|to|for|from)(?: the word)? [\"']?([a-z]+)", low
    ) or re.search(r"\bwhat(?:'s| is)? ([a-z]+)'s opposite", low) or re.search(
        r"\bantonym (?:of|for) ([a-z]+)", low
    )  # fmt: skip
    if found and found[1] in opposites():
        return f"The opposite of {found[1]} is {opposites()[found[1]]}."
    return None


def _stock(low: str, earlier: Sequence[str], seed: int) -> str | None:
    for name, pattern in _STOCKS.items():
        if re.search(pattern, low) and (_WANTS.search(low) or len(low.split()) <= 3):
            if re.search(r"\bwhat(?:'s| is)? an? \w+(?: is)?\W*$|\bdefine\b|\bexplain\b", low):
                return None
            asked = sum(bool(re.search(pattern, one.lower())) for one in earlier)
            entries = stock(name)
            return entries[(seed + asked) % len(entries)]
    if re.search(r"\b(?:another|one more|again)\b", low) and len(low.split()) <= 5 and earlier:
        return _stock_again(earlier, seed)
    return None


def _stock_again(earlier: Sequence[str], seed: int) -> str | None:
    for back, before in enumerate(reversed(earlier)):
        for name, pattern in _STOCKS.items():
            if re.search(pattern, before.lower()):
                asked = sum(bool(re.search(pattern, one.lower())) for one in earlier)
                return stock(name)[(seed + asked + back) % len(stock(name))]
        if back >= 2:
            return None
    return None


_QUESTION = re.compile(
    r"^\W*(?:(?:and|so|well|okay|ok|hey|please|um|uh|er|now|hello|hi|parley|tell me|do you know|"
    r"can you tell me|could you tell me|i wonder|i want to know|can you say|say)\W+)*"
    r"(?:what|who|where|when|why|how|which|is|are|can|do|does|did|name|list|whose|explain|in|at|of|"
    r"give|i)\b"
)
_SYNONYM = {
    "color": "colour", "colours": "colour", "colors": "colour", "coloured": "colour", "grey": "gray",
    "largest": "biggest", "greatest": "biggest", "mix": "mix", "mixing": "mix", "feet": "foot",
    "legs": "leg", "mice": "mouse", "teeth": "tooth", "people": "people", "kids": "baby",
    "babies": "baby", "young": "baby", "noise": "sound", "sounds": "sound", "eating": "eat",
    "eats": "eat", "feed": "eat", "says": "say", "made": "made", "written": "wrote", "author": "wrote",
    "painted": "painted", "painter": "painted", "inventor": "invented", "invent": "invented",
    "ended": "end", "over": "end", "began": "begin", "started": "start", "fell": "fall",
    "sank": "sink", "sunk": "sink", "talk": "language", "speak": "language", "spoken": "language",
    "languages": "language", "meter": "metre", "meters": "metre", "metres": "metre",
    "kilometers": "kilometre", "kilometer": "kilometre", "kilometres": "kilometre", "tall": "tall",
    "ii": "two", "2": "two", "leaves": "leaf", "wide": "wide", "salt": "salty",
    "autumn": "autumn", "ties": "tie", "wheels": "wheel", "humans": "human",
}  # fmt: skip


def _keys(text: str) -> list[str]:
    found = []
    # Recognisers write "What do cow's eat?".
    for word in re.findall(r"[a-z0-9]+", text.lower().replace("'s ", " ")):
        word = _SYNONYM.get(word, word)
        if len(word) > 4 and word.endswith("oes"):
            word = word[:-2]
        if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = _SYNONYM.get(word[:-1], word[:-1])
        found.append(word)
    return found


def _fact(low: str) -> str | None:
    if not _QUESTION.search(low):
        return None
    words = set(_keys(low))
    for keys, sentence in facts():
        if keys <= words or (
            # "largest" and "biggest" are the same question with another word.
            "biggest" in words
            and {"biggest" if key in ("largest",) else key for key in keys} <= words
        ):
            # A short key must not catch a long question about something else.
            content = words - _FILLER
            if len(content - keys) <= len(keys) + (0 if len(keys) > 1 else -1):
                return sentence
    return None


_FILLER = frozenset(
    _keys(
        "what whats is are was were the a an of in on at to do does did you your me tell know please can "
        "could i it its and so that this there for how many much why who where when which called have has "
        "with by okay hey say um uh well name if one as from exactly really hi hello parley usually normally"
    )
)


def _definition(low: str) -> str | None:
    found = re.search(
        r"\b(?:what(?:'s| is| are| was)|define|explain what|explain|what does|meaning of|tell me what|tell me about|"
        r"what do you know about|definition of|explain to me what)\s+(?:the word |a |an |the |some |exactly )*([a-z ]+?)"
        r"(?: mean| means| is| are| exactly| please| to me)*\W*$",
        low,
    )
    if not found:
        return None
    head = found[1].strip()
    table = definitions()
    for one in (
        head,
        head.removesuffix("s"),
        head.removesuffix("es"),
        head.removesuffix("ies") + "y",
    ):
        if one in table:
            return table[one]
    return None
