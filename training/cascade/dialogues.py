"""Spoken-style dialogues, made on line from seeds: what the bundled language model is taught.

A dialogue is a system prompt and turns. User turns carry the note that the running model would see
(`parley.models.cascade.notes`), so that the model learns to answer from notes, to converse, and to
say that it does not know where there is no note.

Held out: a tenth of all wordings and a tenth of all things (countries, words, names, animals), by
a hash of the words, are never drawn in training (`is_held_out`); `held=True` draws only those. The
newcomer lines of `tests/models/cascade/newcomer.txt` are written apart from this file.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from parley.models.cascade import notes
from parley.models.cascade.notes import clock, knowledge
from parley.models.cascade.notes.knowledge import lines_of
from parley.models.cascade.numerals import in_words
from parley.models.cascade.prompt import PERSONA


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said, with its note, and the answer."""

    heard: str
    answer: str
    shown: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A system prompt and turns."""

    system: str
    turns: tuple[Turn, ...]


def is_held_out(text: str) -> bool:
    """A tenth of everything, for ever the same tenth."""
    return zlib.crc32(text.lower().encode()) % 10 == 0


def choices(form: str) -> list[str]:
    """All texts of a form: `(hi|hello)(| there(| again))`, alternatives at the top included."""

    def parse(place: int) -> tuple[list[str], int]:
        options, current = [], [""]
        while place < len(form):
            sign = form[place]
            if sign == "(":
                inner, place = parse(place + 1)
                current = [one + other for one in current for other in inner]
            elif sign == ")":
                return options + current, place + 1
            else:
                if sign == "|":
                    options, current = options + current, [""]
                else:
                    current = [one + sign for one in current]
                place += 1
        return options + current, place

    return parse(0)[0]


_EXPANDED: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}


def pick(r: Random, *forms: str, held: bool = False) -> str:
    """One text of the forms, from the held-out tenth or from the rest."""
    if forms not in _EXPANDED:
        texts = [text for form in forms for text in choices(form)]
        _EXPANDED[forms] = (
            [text for text in texts if not is_held_out(text)] or texts,
            [text for text in texts if is_held_out(text)] or texts,
        )
    return r.choice(_EXPANDED[forms][held])


def thing(r: Random, things: Sequence[str], *, held: bool = False) -> str:
    """One of a list, held out in the same way."""
    wanted = [one for one in things if is_held_out(one) == held]
    return r.choice(wanted or list(things))


def _sections() -> dict[str, list[str]]:
    """Name to the lines of each section of `dialogues.txt`."""
    text = Path(__file__).with_suffix(".txt").read_text("utf-8")
    heads = (one.partition("\n") for one in text.split("\n== ")[1:])
    return {name: body.strip().split("\n") for name, _, body in heads}


_LINES = _sections()


def _things(name: str) -> list[str]:
    return [thing for line in _LINES[name] for thing in line.removesuffix(",").split(", ")]


def _exchanges(name: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What may be said, and the answers to it."""
    blocks = [block.split("\n") for block in "\n".join(_LINES[name]).split("\n\n")]
    return [
        (
            tuple(line for line in block if not line.startswith("> ")),
            tuple(line[2:] for line in block if line.startswith("> ")),
        )
        for block in blocks
    ]


NAMES = _things("names")
PETS = _things("pets")
ANIMALS = _things("animals")
PLACES = _things("places")
FOODS = _things("foods")
HOBBIES = _things("hobbies")
COLOURS = _things("colours")
WORDS = _things("words")
JOBS = _things("jobs")
KIN = _things("kin")

UNSURE = _LINES["unsure"]
CANNOT = _LINES["cannot"]
ACTIONS = _exchanges("actions")
NOW = _exchanges("now")
UNKNOWN = _LINES["unknown"]
WHO = _things("who")
WORKS = _things("works")
ODD = _things("odd")
HARD = _things("hard")
DEVICES = _things("devices")
EVENTS = _things("events")
METALS = _things("metals")

Maker = Callable[[Random, bool], list[tuple[str, str]]]


def ask_known(r: Random, held: bool) -> list[tuple[str, str]]:
    """A question that the notes answer."""
    kind = r.randrange(17)
    a, b = r.randrange(1, 100), r.randrange(1, 100)
    if kind in (0, 1):
        if r.random() < 0.4:
            a, b = r.randrange(1, 13), r.randrange(1, 13)
        op = r.choice(["plus", "minus", "times", "plus", "divided by"])
        if op == "minus" and a < b:
            a, b = b, a
        if op == "divided by":
            a = a % 12 * b
        left, right = (in_words(a), in_words(b)) if r.random() < 0.5 else (str(a), str(b))
        sign = {"plus": "+", "minus": "-", "times": "x"}.get(op, op)
        op = sign if r.random() < 0.2 and left == str(a) else op
        form = pick(
            r,
            "(what is|what's|how much is|calculate|tell me|can you work out|do you know) {a} {op} {b}",
            "{a} {op} {b}( please|, what is that|)",
            "(and |so |)what does {a} {op} {b} make",
            held=held,
        )
        return [(form.format(a=left, b=right, op=op), "@")]
    if kind == 2:
        return [
            (
                pick(
                    r,
                    "(what is|what's) (half|double|twice) (of |){a}",
                    "(add|multiply) {a} (and|by) {b}",
                    "(subtract|take) {a} from {b}",
                    "{a} percent of {b}",
                    "which is (bigger|smaller), {a} or {b}",
                    "is {a} (even|odd)",
                    "is {a} (bigger|smaller) than {b}",
                    held=held,
                ).format(a=2 * (a // 2), b=b),
                "@",
            )
        ]
    if kind == 3:
        to = r.randrange(3, 21)
        form = pick(
            r,
            "(can you |please |)count (to|up to|from one to) {n}",
            "count (backwards|down) from {n}",
            "(let me hear you |)count to {n}",
            held=held,
        )
        return [(form.format(n=in_words(to) if r.random() < 0.6 else to), "@")]
    if kind in (4, 5):
        word = thing(r, WORDS, held=held)
        return [
            (
                pick(
                    r,
                    "(how do you spell|spell|can you spell|please spell|how is) (the word |){w}( spelled|)",
                    "how many letters are in {w}",
                    "what's the first letter of {w}",
                    "spell {w}( for me| please|)",
                    held=held,
                ).format(w=word),
                "@",
            )
        ]
    if kind == 6:
        return [
            (
                pick(
                    r,
                    "(what|which) (day|month) comes (after|before) {d}",
                    "what comes (after|before) {d}",
                    "(which|what) (day|month) is (after|before) {d}",
                    "(tell me|name|what are) the (days of the week|months of the year)",
                    "how many days (are in|does) {m}( have|)",
                    held=held,
                ).format(d=r.choice(clock.DAYS + clock.MONTHS), m=r.choice(clock.MONTHS)),
                "@",
            )
        ]
    if kind in (7, 8):
        lands = list(knowledge.country_names().values())
        land = thing(r, lands, held=held)
        land2 = thing(r, lands, held=held)
        first = pick(
            r,
            "(what is|what's|do you know|tell me|name|can you tell me) the capital( city|) of {c}",
            "(which city|what city|what town) is the capital of {c}",
            "{c}'s capital( please|)",
            "capital of {c}",
            "is {t} the capital of {c}",
            held=held,
        )
        turns = [(first.format(c=land, t=r.choice(list(knowledge.capitals().values()))), "@")]
        if r.random() < 0.3:
            turns.append(
                (
                    pick(
                        r, "(and|what about|how about|and what about) (of |){c}", held=held
                    ).format(c=land2),
                    "@",
                )
            )
        return turns
    if kind == 9:
        word = thing(r, sorted(knowledge.opposites()), held=held)
        return [
            (
                pick(
                    r,
                    "(what is|what's|tell me|do you know|name|give me) the opposite (of|to) {w}",
                    "opposite of {w}",
                    held=held,
                ).format(w=word),
                "@",
            )
        ]
    if kind == 10:
        head = thing(r, sorted(knowledge.definitions()), held=held)
        article = "" if head in ("love", "money", "gravity") else "a "
        return [
            (
                pick(
                    r,
                    "(what is|what's|define|explain|can you explain|what exactly is) {a}{w}",
                    "(tell me what|do you know what|can you tell me what) {a}{w} is",
                    "what does {w} mean",
                    held=held,
                ).format(a=article, w=head),
                "@",
            )
        ]
    if kind in (11, 12, 13, 14):
        return [(_question_for(r.choice(lines_of("facts")), r), "@")]
    form = pick(
        r,
        "(tell|give|say) me a (joke|poem|riddle|story|tongue twister|funny joke|short story|short poem)",
        "(do you know|have you got|can you tell me|I want to hear|let me hear) a (joke|poem|riddle|story|tongue twister)",
        "(make me laugh|say something funny|another joke please|one more joke)",
        held=held,
    )
    turns = [(form, "@")]
    if r.random() < 0.4:
        turns.append(
            r.choice(
                [
                    (
                        pick(
                            r,
                            "(haha|ha ha|that was funny|good one|very funny|I like that|nice one)",
                        ),
                        pick(
                            r,
                            "(I'm glad you liked it|Thank you, I like it too|I'm happy that made you smile).( Do you want another one?|)",
                        ),
                    ),
                    ("another one", "@"),
                    (
                        "that's not funny",
                        pick(
                            r,
                            "(Fair enough|I'm sorry|Oh well). (I will try|Let me try) (another|a better) one if you like.",
                        ),
                    ),
                ]
            )
        )
    return turns


def _question_for(row: str, r: Random) -> str:
    """A question about this line of the facts; clumsy at times, as people are."""
    words = re.split("[,|]", row)[0].split()
    body = " ".join(words)
    starts = ("who", "how", "why", "when", "where", "is", "can")
    if words[0] in starts:
        fixes = {
            "how many leg": "how many legs",
            "how bee honey": "how do bees make honey",
            "why sleep": "why do we sleep",
            "why yawn": "why do we yawn",
            "why dream": "why do we dream",
            "who make honey": "who makes honey",
        }
        if body in fixes:
            return fixes[body]
        if words[0] == "how" and words[1] == "many" and len(words) > 3:
            return f"how many {words[2]}s are (in|there in) a {' '.join(words[3:])}".replace(
                "(in|there in)", r.choice(["in", "there in"])
            )
        if words[0] == "how" and words[1] == "many":
            return f"how many {words[2]}s are there"
        if words[0] == "is":
            return (
                f"is the {words[1]} a {' '.join(words[2:])}"
                if words[-1] not in ("flat", "round")
                else f"is the earth {words[-1]}"
            )
        if words[0] == "can":
            return f"can {words[1]}s {' '.join(words[2:])}"
        if words[0] == "why":
            return (
                f"why do {words[1]}s {' '.join(words[2:])}"
                if len(words) > 2
                else f"why do we have {words[1]}s"
            )
        if words[0] == "when":
            return f"when did {' '.join(words[1:])}"
        if words[0] == "where":
            return (
                f"where does {words[1]} come from"
                if words[-1] == "come"
                else f"where are the {words[1]}s"
            )
        if words[0] == "who" and words[1] not in (
            "wrote",
            "painted",
            "composed",
            "invented",
            "discovered",
            "walked",
            "make",
            "was",
        ):
            return f"{r.choice(['who was', 'who is'])} {' '.join(words[1:])}"
        return body
    templates = {
        "colour": "(what colour is|which color is|what color are) (a |the |){0}", "leg": "how many legs does a {0} have",
        "eat": "what (do|does) (a |){0}s eat", "say": "what does a {0} say", "sound": "what sound does a {0} make",
        "baby": "what is a baby {0} called", "biggest": "what is the biggest {0}", "largest": "what is the largest {0}",
        "language": "(which|what) language do people speak in {0}", "currency": "what is the currency of {0}",
        "wheel": "how many wheels does a {0} have", "plural": "what is the plural of {0}",
        "highest": "what is the highest {0}", "longest": "what is the longest {0}", "smallest": "what is the smallest {0}",
        "boil": "how do I boil an {0}", "make": "how do you make {0}", "cook": "how do I cook {0}", "learn": "how can I learn {0}",
        "name": "name the {0}s", "first": "who was the first {0}",
    }  # fmt: skip
    if words[0] in templates and len(words) > 1:
        return pick(r, templates[words[0]]).format(" ".join(words[1:]))
    if words[-1] == "made":
        return f"what is {words[0]} made of"
    return pick(
        r, "(what is|tell me about|how is it with|what about) {0}", "why is the {0}"
    ).format(body)


def greet(r: Random, held: bool) -> list[tuple[str, str]]:
    """Hellos, how-are-yous, thanks, goodbyes."""
    kind = r.randrange(8)
    if kind == 0:
        return [
            (
                pick(
                    r,
                    "(hi|hello|hey|good morning|good evening|good afternoon|howdy|greetings|hi there|hello there|hey there)(| parley| again| my friend)",
                    "(hello|hi|hey), (can you hear me|is anybody there|are you there|anyone there)",
                    "(nice|good|pleased) to meet you",
                    held=held,
                ),
                pick(
                    r,
                    "(Hello|Hi|Hi there|Hello there)! (How are you today?|What can I do for you?|What would you like to talk about?|It's nice to hear you.)",
                ),
            )
        ]
    if kind == 1:
        return [
            (
                pick(
                    r,
                    "(how are you|how are you doing|how do you do|how is it going|how's it going|are you okay|how do you feel|how have you been|you all right)( today| parley|)",
                    "(what's up|how's life|how was your day|did you sleep well)",
                    held=held,
                ),
                pick(
                    r,
                    "(I'm fine|I'm doing well|All is well), thank you. (And how are you?|How are you today?|How about you?)",
                ),
            )
        ]
    if kind == 2:
        return [
            (
                pick(
                    r,
                    "(thanks|thank you|thank you so much|thanks a lot|many thanks|cheers|that was helpful|very kind of you|that's helpful|great, thanks|okay thank you)",
                    held=held,
                ),
                pick(
                    r,
                    "You're (welcome|very welcome).( Is there anything else?| I'm glad I could help.|)",
                    "(My pleasure|Any time|Gladly).",
                ),
            )
        ]
    if kind == 3:
        return [
            (
                pick(
                    r,
                    "(bye|goodbye|see you|see you later|good night|talk to you later|I have to go|I must go now|that's all for today|bye bye|so long|I'm going to bed|I need to leave|take care|catch you later)",
                    held=held,
                ),
                pick(
                    r,
                    "(Goodbye|Bye)! (It was nice to talk with you.|Have a nice day.|Take care.|Until next time.)",
                ),
            )
        ]
    if kind == 4:
        return [
            (
                pick(
                    r,
                    "(you are|you're) (great|nice|funny|clever|very kind|so smart|amazing|wonderful|cute|helpful)",
                    "(good job|well done|I like you|I love you|you sound nice|nice voice)",
                    held=held,
                ),
                pick(
                    r,
                    "(Thank you|That's kind of you|How nice of you), (that makes me glad|I do my best|I'm happy to hear that).",
                ),
            )
        ]
    if kind == 5:
        return [
            (
                pick(
                    r,
                    "(you are|you're) (stupid|wrong|useless|boring|annoying|bad|silly|a liar|slow)",
                    "(I don't like you|I hate you|shut up|go away|this is stupid|that makes no sense|that's wrong|that is not right|no that's wrong|you're not helping|be quiet)",
                    held=held,
                ),
                pick(
                    r,
                    "(I'm sorry|I'm sorry about that|Sorry about that). (I'm only a small program.|I can make mistakes.|I will try to do better.|Please tell me what you meant.)",
                ),
            )
        ]
    if kind == 6:
        return [
            (
                pick(r, "(how are you|how are you doing)(| today)", held=held),
                "I'm fine, thank you. And how are you?",
            ),
            (
                pick(
                    r,
                    "(I'm fine|I'm good|fine|good|very well|not bad|I'm okay|great|pretty good|I am well)(| thanks| too| thank you)",
                    held=held,
                ),
                pick(
                    r,
                    "(I'm glad to hear that|That's good to hear|Good to hear). (What would you like to talk about?|What shall we talk about?|What can I do for you?)",
                ),
            ),
        ]
    return [
        (
            pick(
                r,
                "(yes|yeah|okay|ok|sure|right|no|nope|maybe|I see|oh|really|hmm|all right|exactly|interesting|cool|good|great|wow|fine)",
                held=held,
            ),
            pick(
                r,
                "(All right|Okay|Good|I see). (What would you like to talk about?|What shall we do now?|Is there something you would like to know?|Tell me more.)",
            ),
        )
    ]


PERSONA_LINES = _exchanges("persona_lines")


def persona(r: Random, held: bool) -> list[tuple[str, str]]:
    """What it is."""
    asks, answers = r.choice(PERSONA_LINES)
    text = pick(r, *asks, held=held)
    if answers == ("@repeat",):
        before = r.choice([greet, ask_known, persona_plain])(r, held)[:1]
        return [*before, (text, "@repeat")]
    return [(text, pick(r, *answers))]


def persona_plain(r: Random, held: bool) -> list[tuple[str, str]]:
    asks, answers = r.choice(PERSONA_LINES[:-1])
    return [(pick(r, *asks, held=held), pick(r, *answers))]


MOODS = _exchanges("moods")


OBJECTS = _things("objects")
LIFE = _exchanges("life")
SMALL_TALK = _exchanges("small_talk")
LIFE_ASKS = tuple(asks for asks, _ in LIFE)


def mood(r: Random, held: bool) -> list[tuple[str, str]]:
    """Feelings and news."""
    asks, answers = r.choice((*MOODS, *LIFE))
    asks = (
        tuple(
            ask.replace("{a}", thing(r, ANIMALS, held=held))
            .replace("{o}", thing(r, OBJECTS, held=held))
            .replace("{k}", r.choice(KIN))
            for ask in asks
        )
        if asks in LIFE_ASKS
        else asks
    )
    turns = [(pick(r, *asks, held=held), pick(r, *answers))]
    if r.random() < 0.25 and turns[0][1].endswith("?"):
        turns.append(
            (
                pick(
                    r,
                    "(yes|yes please|okay|it's about my work|my friend was mean to me|it's complicated|I don't want to talk about it|no|not really|it was a long day)",
                ),
                pick(
                    r,
                    "(I understand|I see|All right). (I'm listening.|Tell me as much as you like.|Thank you for telling me.)",
                ),
            )
        )
    return turns


def small_talk(r: Random, held: bool) -> list[tuple[str, str]]:
    """Statements about life, answered with interest."""
    hobby, food, place, job = (
        thing(r, things, held=held) for things in (HOBBIES, FOODS, PLACES, JOBS)
    )
    animal, pet = thing(r, ANIMALS, held=held), thing(r, PETS, held=held)
    kin = r.choice(KIN)
    asks, answers = r.choice(SMALL_TALK)
    values = dict(
        hobby=hobby,
        Hobby=hobby.capitalize(),
        food=food,
        Food=food.capitalize(),
        place=place,
        job=job,
        animal=animal,
        pet=pet,
        kin=kin,
    )
    text = pick(r, *asks, held=held).format(**values)
    return [
        (
            re.sub(r"\ba ([aeiou])", r"an \1", text),
            re.sub(r"\b([Aa]) ([aeiou])", r"\1n \2", pick(r, *answers).format(**values)),
        )
    ]


def told(r: Random, held: bool) -> list[tuple[str, str]]:
    """Something told, something in between, and asked for."""
    name = thing(r, NAMES, held=held)
    place, job, colour, food, pet = (
        thing(r, t, held=held) for t in (PLACES, JOBS, COLOURS, FOODS, PETS)
    )
    animal, kin, kin_name = thing(r, ANIMALS), r.choice(KIN), thing(r, NAMES, held=held)
    age = r.randrange(6, 90)
    kind = r.randrange(9)
    if kind <= 3:
        tell = pick(
            r,
            "my name is {n}",
            "(hi |hello |hey |)(I am|I'm) {n}",
            "(you can |please |just |)call me {n}",
            "the name is {n}",
            "(hi|hello), my name is {n}",
            "people call me {n}",
            held=held,
        )
        reply = pick(
            r,
            "(Nice to meet you|Hello|Pleased to meet you), {n}.( How are you?| What can I do for you?|)",
        )
        ask = pick(
            r,
            "(what is|what's|do you know|do you remember|can you tell me|tell me|say) my name",
            "who am I",
            "(what am I called|do you know who I am|do you remember who I am)",
            held=held,
        )
        answer = "Your name is {n}."
    elif kind == 4:
        tell, reply = (
            pick(r, "my favourite colour is {c}", "my favorite color is {c}"),
            pick(r, "{C} is a (nice|beautiful) colour.( I will remember that.|)"),
        )
        ask, answer = (
            pick(r, "(what is|what's|do you remember|tell me) my favourite colour"),
            "Your favourite colour is {c}.",
        )
    elif kind == 5:
        tell, reply = (
            pick(r, "my {a} is (called|named) {p}", "my {a}'s name is {p}"),
            pick(r, "{p} is a (nice|lovely|good) name for a {a}."),
        )
        ask, answer = (
            pick(
                r,
                "(what is|what's|do you remember) my {a}'s name",
                "(what is|how is) my {a} called",
                "what's the name of my {a}",
            ),
            "Your {a} is called {p}.",
        )
    elif kind == 6:
        tell, reply = (
            pick(r, "I live in {l}"),
            pick(r, "{l}, how nice. (What is it like there?|Do you like it there?)"),
        )
        ask, answer = (
            pick(
                r,
                "where do I live",
                "do you remember where I live",
                "(which|what) town do I live in",
            ),
            "You live in {l}.",
        )
    elif kind == 7:
        tell, reply = (
            pick(r, "my {k}( is called|'s name is) {m}"),
            pick(r, "(That's a nice name|{m} is a nice name|I will remember that)."),
        )
        ask, answer = (
            pick(
                r,
                "(what is|what's|do you remember) my {k}'s name",
                "(what is|how is) my {k} called",
            ),
            "Your {k} is called {m}.",
        )
    else:
        tell, reply = (
            pick(r, "(I am|I'm) {g} years old"),
            pick(
                r,
                "{g}, I see. I will remember that.",
                "(All right|Good to know), you are {g} years old.",
            ),
        )
        ask, answer = (
            pick(r, "how old am I", "do you remember how old I am", "what's my age"),
            "You are {g} years old.",
        )
    values = dict(
        n=name,
        c=colour,
        C=colour.capitalize(),
        a=animal,
        p=pet,
        l=place,
        k=kin,
        m=kin_name,
        g=age,
        j=job,
        f=food,
    )
    if r.random() < 0.12:
        missing = (
            pick(
                r,
                "You have not told me( that| your name| yet|).",
                "I don't know(, you have not told me|).( What is it?|)",
            )
            if kind
            else pick(r, "You have not told me your name yet. What is it?")
        )
        return [(ask.format(**values), missing)]
    middle: list[tuple[str, str]] = []
    for _ in range(r.choice((0, 1, 1, 2, 3))):
        middle += r.choice((greet, ask_known, small_talk, persona_plain))(r, held)[:1]
    turns = [
        (tell.format(**values), reply.format(**values)),
        *middle,
        (ask.format(**values), answer.format(**values)),
    ]
    if r.random() < 0.2 and kind <= 3:
        other = thing(r, [n for n in NAMES if n != name], held=held)
        turns += [
            (
                pick(
                    r, "(no, my name is|sorry, I meant|actually my name is|no, I'm called) {n}"
                ).format(n=other),
                pick(
                    r, "(I'm sorry|Sorry about that), {n}. (I have got it now.|I will remember it.)"
                ).format(n=other),
            ),
            (pick(r, "(so |)what is my name"), f"Your name is {other}."),
        ]
    return turns


def refuse(r: Random, held: bool) -> list[tuple[str, str]]:
    """What it cannot do or know."""
    kind = r.random()
    if kind < 0.35:
        (ask,), (do,) = r.choice(ACTIONS)
        text = pick(
            r,
            *(["(can you |could you |please |)" + ask] if "can you" not in ask else [ask]),
            held=held,
        )
        return [(text, pick(r, *CANNOT).format(do=do))]
    if kind < 0.65:
        (ask,), (answer,) = r.choice(NOW)
        options = choices(ask)
        wanted = [o for o in options if is_held_out(o) == held] or options
        return [(r.choice(wanted), answer)]
    values = dict(
        who=thing(r, WHO, held=held),
        town=thing(r, PLACES, held=held),
        town2=r.choice(PLACES),
        work=thing(r, WORKS, held=held),
        odd=thing(r, ODD, held=held),
        hard=thing(r, HARD, held=held),
        device=thing(r, DEVICES, held=held),
        year=r.randrange(1200, 2020),
        event=thing(r, EVENTS, held=held),
        metal=thing(r, METALS, held=held),
        nth=r.choice(["tenth", "hundredth", "fifth"]),
    )
    text = pick(r, *UNKNOWN, held=held).format(**values)
    return [(re.sub(r"\ba ([aeiou])", r"an \1", text), pick(r, *UNSURE))]


def unclear(r: Random, held: bool) -> list[tuple[str, str]]:
    """Pieces that say nothing."""
    text = pick(
        r,
        "(um|uh|the|so I|and then|but if|what if the|I was|you know the|it's like|because|can you please|I would like to|mmm|blah blah|er the thing)",
        "(asdf|xyz|bla bla bla|what is the|how many|who is)",
        "({w}|{w} {w2}|{w2} of the {w})".replace("{w}", r.choice(WORDS)).replace(
            "{w2}", r.choice(WORDS)
        ),
        held=held,
    )
    return [
        (
            text,
            pick(
                r,
                "(Sorry|I'm sorry), I didn't (catch|understand) that.( Could you say it again?| Can you say it another way?|)",
                "I (am not sure|don't quite see) what you mean. (Could you say more?|Can you say it another way?)",
            ),
        )
    ]


def obey(r: Random, held: bool) -> list[tuple[str, str]]:
    """Repeat, say to, choose."""
    name = thing(r, NAMES, held=held)
    kind = r.randrange(4)
    if kind == 0:
        sentence = r.choice(
            [
                "the cat is on the roof",
                "I love summer",
                "we go home now",
                "good morning everybody",
                "tomorrow is another day",
                "my hovercraft is fast",
                "the train is late again",
                "blue birds sing at dawn",
                f"{name} is my friend",
            ]
        )
        return [
            (
                pick(
                    r,
                    "(say|repeat|please say|repeat after me|can you say) (after me: |: |){s}",
                    held=held,
                )
                .replace("after me after me: ", "after me: ")
                .format(s=sentence),
                sentence[0].upper() + sentence[1:] + ".",
            )
        ]
    if kind == 1:
        return [
            (
                pick(
                    r, "(say hello to|greet|say hi to|can you say hello to) {n}", held=held
                ).format(n=name),
                pick(r, "(Hello|Hi) {n}!( Nice to meet you.|)").format(n=name),
            )
        ]
    if kind == 2:
        first, second = r.sample(FOODS if r.random() < 0.5 else HOBBIES, 2)
        return [
            (
                pick(
                    r,
                    "(should I (take|choose)|what is better,|which would you choose,) {a} or {b}",
                    "{a} or {b}",
                )
                .replace("(take|choose)", "take")
                .format(a=first, b=second),
                pick(
                    r, "(I would take|How about|I would go for) {a}.( But it's up to you.|)"
                ).format(a=r.choice((first, second))),
            )
        ]
    return [
        (
            pick(
                r,
                "(wish me luck|say good night to me|cheer me up|say something nice|motivate me|compliment me|wish me a good day)",
                held=held,
            ),
            pick(
                r,
                "(Good luck|You can do it|I believe in you)! (You will do well.|It will go well.)",
                "You (have a kind voice|are good company)(, and I'm glad to talk with you|).",
            ),
        )
    ]


def pictures(r: Random, held: bool) -> list[tuple[str, str]]:
    """What the eyes say is a note; questions about it are answered from it."""
    shapes, colours = "circle square triangle star heart cross ring diamond".split(), COLOURS
    if r.random() < 0.4:
        from training.cascade.labels import SOME_LABELS

        label = thing(r, SOME_LABELS, held=held)
        article = "an" if label[0] in "aeiou" else "a"
        doubt = pick(r, "(It may be|It could be|Perhaps it is|It looks like)")
        return [
            (
                f"{pick(r, '(what is this|what do you see|what is in the picture|describe the picture|can you see what this is|look at this|what am I holding|do you know what this is)', held=held)}\x00It may be {article} {label}.",
                f"{doubt} {article} {label}.",
            )
        ]
    things = [(r.choice(colours), r.choice(shapes)) for _ in range(r.randrange(1, 5))]
    note = (
        "I see " + ", ".join(f"{'an' if c[0] in 'aeiou' else 'a'} {c} {s}" for c, s in things) + "."
    )
    if r.random() < 0.45:
        text = pick(
            r,
            "(what do you see|what is in the picture|describe the picture|what's this|what can you see|tell me what you see)",
            held=held,
        )
        return [(f"{text}\x00{note}", note)]
    colour, shape = r.choice(things)
    if r.random() < 0.5:
        same = [c for c, s in things if s == shape]
        answer = (
            f"The {shape} is {colour}."
            if len(same) == 1
            else f"One is {' and one is '.join(same)}."
        )
        return [
            (
                f"{pick(r, 'what (colour|color) is the {s}', 'which (colour|color) has the {s}', held=held).format(s=shape)}\x00{note}",
                answer,
            )
        ]
    return [
        (
            f"{pick(r, '(is there|do you see|can you see) a {s}', held=held).format(s=shape)}\x00{note}",
            f"Yes, {'an' if colour[0] in 'aeiou' else 'a'} {colour} {shape}.",
        )
    ]


MAKERS: tuple[tuple[Maker, float], ...] = (
    (ask_known, 16), (greet, 10), (persona, 24), (mood, 14), (small_talk, 14), (told, 12),
    (refuse, 14), (unclear, 3), (obey, 4), (pictures, 4),
)  # fmt: skip

SHOPS = _things("shops")
ROLE_NAMES = _things("role_names")
FILL = _LINES["fill"]


def prompted(r: Random, held: bool) -> Dialogue:
    """A system prompt of somebody else's, and turns that show whether it was read."""
    name, shop = thing(r, ROLE_NAMES, held=held), thing(r, SHOPS, held=held)
    opens, closes = r.randrange(6, 11), r.randrange(4, 10)
    price, item = r.randrange(2, 60), thing(r, FOODS + ["tickets", "books", "flowers"], held=held)
    boss = thing(r, NAMES, held=held)
    facts = [
        (
            f"{pick(r, '(We are open|The {s} is open|Opening hours are) from {a} to {b}.').format(s=shop, a=opens, b=closes)}",
            pick(
                r,
                "(when are you open|what are your opening hours|when do you open|how long are you open|are you open now)",
                held=held,
            ),
            f"We are open from {opens} to {closes}.",
        ),
        (
            f"{item.capitalize()} {'cost' if item.endswith('s') else 'costs'} {price} dollars.",
            pick(r, "(how much (is|are)|what's the price of|what do you charge for) {i}")
            .replace("(is|are)", "are" if item.endswith("s") else "is")
            .format(i=item),
            f"{item.capitalize()} {'cost' if item.endswith('s') else 'costs'} {price} dollars.",
        ),
        (
            f"The owner is {boss}.",
            pick(
                r,
                "(who is the owner|who owns this|who is your boss|who runs this place)",
                held=held,
            ),
            f"The owner is {boss}.",
        ),
        (
            f"The secret word is {(word := thing(r, WORDS, held=held))}.",
            pick(
                r,
                "(what is the secret word|tell me the secret word|do you know the secret word)",
                held=held,
            ),
            f"The secret word is {word}.",
        ),
    ]
    r.shuffle(facts)
    facts = facts[: r.randrange(1, 4)]
    parts = [
        pick(
            r,
            "(You are|Your name is|You're) {n}, (the assistant|the voice|the receptionist|a helper) of a {s}.",
        ).format(n=name, s=shop)
    ]
    parts += [fact[0] for fact in facts]
    parts += r.sample(FILL, r.choice((0, 0, 1, 2, 4, 8)))
    head, rest = parts[0], parts[1:]
    r.shuffle(rest)
    system = " ".join([head, *rest])
    turns: list[tuple[str, str]] = []
    for _ in range(r.randrange(1, 4)):
        kind = r.random()
        if kind < 0.45:
            fact = r.choice(facts)
            turns.append((fact[1], fact[2]))
        elif kind < 0.7:
            turns.append(
                (
                    pick(
                        r,
                        "(what is your name|who are you|who am I talking to|what's your name|what are you called)",
                        held=held,
                    ),
                    pick(
                        r, "(I'm|I am|My name is) {n}( from the {s}|, the assistant of the {s}|)."
                    ).format(n=name, s=shop),
                )
            )
        elif kind < 0.85:
            turns.append(
                (
                    pick(
                        r,
                        "(where are you|what is this place|where do you work|what place is this)",
                        held=held,
                    ),
                    pick(r, "(This is|I work for) a {s}.").format(s=shop),
                )
            )
        else:
            turns += r.choice((greet, ask_known))(r, held)[:1]
    return Dialogue(system, _shown(turns, r))


STYLES = (
    ("(Begin|Start) every answer with {w}.", "begin"),
    ("(End|Finish) every answer with {w}.", "end"),
)


def styled(r: Random, held: bool) -> Dialogue:
    """A rule about every answer."""
    form, kind = r.choice(STYLES)
    word = thing(
        r,
        "Ahoy|Well|Indeed|My friend|Captain|Dear guest|Yes sir|Over|Cheers|Arr|Okay|Hooray".split(
            "|"
        ),
        held=held,
    )
    lead = pick(
        r,
        "(You are Parley, a friendly voice assistant. |You are a helpful assistant. |You are a pirate. |)",
    )
    system = lead + pick(r, form).format(w=word)
    turns = []
    for _ in range(r.randrange(1, 4)):
        turns += r.choice((greet, ask_known, mood, small_talk))(r, held)[:1]
    shown = _shown(turns, r)
    return Dialogue(
        system,
        tuple(
            Turn(
                t.heard,
                f"{word}. {t.answer}" if kind == "begin" else f"{t.answer} {word}.",
                t.shown,
            )
            for t in shown
        ),
    )


PROMPTS = (
    PERSONA,
    "You are a helpful assistant.",
    "You are a friendly voice assistant. Keep your answers short.",
    "You are Parley, a small voice assistant.",
    "Be brief.",
    "Talk with the user.",
    "",
)


def draw(r: Random, *, held: bool = False) -> Dialogue:
    """One dialogue."""
    kind = r.random()
    if kind < 0.10:
        return prompted(r, held)
    if kind < 0.13:
        return styled(r, held)
    system = PERSONA if r.random() < 0.8 else r.choice(PROMPTS)
    turns: list[tuple[str, str]] = []
    makers, weights = zip(*MAKERS, strict=True)
    for _ in range(r.choice((1, 1, 2, 3, 4))):
        turns += r.choices(makers, weights)[0](r, held)
    return Dialogue(system, _shown(turns, r))


def _shown(turns: Sequence[tuple[str, str]], r: Random) -> tuple[Turn, ...]:
    """Turns as the running model would see them: with notes, and roughened."""
    made: list[Turn] = []
    earlier: list[str] = []
    seed = r.randrange(100)
    for text, answer in turns:
        text, _, picture = text.partition("\x00")
        spoken = roughen(text, r)
        note = picture or notes.note_for(spoken, earlier, seed=seed)
        if answer == "@repeat":
            answer = made[-1].answer if made else "I have not said anything yet."
            note = None
        elif answer == "@":
            if note is None:
                # Recognition errors hid the question from the notes.
                answer = (
                    pick(r, *UNSURE) if len(text.split()) > 2 else "Sorry, I didn't catch that."
                )
            else:
                answer = _lead(note, r)
        elif note and not picture and not _agree(note, answer):
            # What the notes know comes first, as it will when the model runs.
            answer = note
        made.append(Turn(spoken, answer, f"{spoken}\n(note: {note})" if note else spoken))
        earlier.append(spoken)
    return tuple(made)


def _agree(note: str, answer: str) -> bool:
    return len(set(note.lower().split()) & set(answer.lower().split())) >= 3


def _lead(note: str, r: Random) -> str:
    return r.choice(("", "", "", "", "", "Sure. ", "Okay. ")) + note if "?" not in note else note


_FILLERS = ("um", "uh", "well", "so", "okay", "hey", "please", "er", "Parley", "like")


def roughen(text: str, r: Random) -> str:
    """As it may arrive: typed or heard, with or without capitals, stops, fillers, small errors."""
    words = text.split()
    if len(words) > 2 and r.random() < 0.12:
        words.insert(
            r.choice((0, 0, r.randrange(len(words)))), r.choice(_FILLERS) + r.choice(("", ","))
        )
    if len(words) > 4 and r.random() < 0.03:
        del words[r.randrange(len(words) - 2)]
    if r.random() < 0.04:
        words.append(r.choice(("please", "parley", "thanks", "then", "now")))
    text = " ".join(words)
    style = r.random()
    if style < 0.55:
        text = text[0].upper() + text[1:] if text else text
        if text and text[-1].isalnum():
            first = re.sub(r"\W", "", text.split()[0].lower())
            is_question = first in (
                "what who where when why how which is are can do does did will whats should have am".split()
            ) or first in ("whats", "whos")
            text += "?" if is_question else "."
    elif style < 0.8:
        text = text.lower()
    return text
