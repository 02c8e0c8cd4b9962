"""Conversations as text: what is said, what must be answered, and what the system prompt states.

Pure and repeatable: everything comes from the `Random` that is passed in. `heard` is what the ears
should write down (lower-case words, no punctuation), `answer` what the model says. The material for
reports is made by the same templates with a seed that training never uses; `is_held_out` keeps a
tenth of all sentences out of training altogether, so that "unseen sentences" means it.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from training import words
from training.words import number

if TYPE_CHECKING:
    from training.pictures import Scene

NOT_CAUGHT = "Sorry, I did not catch that."
NOT_KNOWN = "Sorry, I only know a few things."
NO_PICTURE = "I do not see a picture."
UNCLEAR = "?"
"""What the ears write for noise, mumbling and other languages."""
FAR = "something else"
"""What the ears write for English outside the domain."""

SYSTEMS = (
    "You are a helpful assistant.",
    "Streaming Omni Conversation.",
    "You are a helpful assistant. You can accept audio and text input and output voice and text.",
    "You are a helpful assistant with the above voice style.",
    "As an assistant, you will speak using this voice style.",
    "",
    "Use the <reserved_53> voice.",
    "Use the voice in the audio prompt to synthesize new content.",
    "Clone the voice in the provided audio prompt.",
    "You are a friendly assistant who gives short answers.",
    "Please answer the questions of the user.",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer. `spoken` is what a voice says when it differs from `heard`;
    `language` an espeak voice for other languages; `about_picture` asks for the picture."""

    kind: str
    heard: str
    answer: str
    spoken: str = ""
    language: str = ""
    about_picture: bool = False

    @property
    def words(self) -> str:
        """What is said aloud."""
        return self.spoken or self.heard


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A system prompt and the turns that follow it."""

    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the system prompt states; empty strings are not stated."""

    time: str = ""
    day: str = ""
    weather: str = ""
    place: str = ""
    user: str = ""
    own: str = ""


_KINDS = {
    "arithmetic": 26, "count": 16, "spell": 8, "repeat": 16, "capital": 7, "opposite": 5,
    "day": 4, "month": 4, "sound": 3, "legs": 3, "color": 3, "mix": 2, "compare": 20,
    "double": 3, "greet": 4, "self": 3, "howare": 2, "thanks": 2, "bye": 2, "stop": 2,
    "tell_name": 6, "ask_name": 5, "time": 5, "fact_day": 2, "weather": 2, "place": 2,
    "far": 9, "foreign": 3, "picture_none": 2,
}  # fmt: skip
KINDS = tuple(_KINDS)
_BARE = {"greet", "repeat", "thanks", "bye", "stop", "howare", "tell_name", "far", "foreign"}


def sentence(text: str) -> str:
    """Words as they are written: capitals at the start and in names, "I" upright."""
    text = re.sub(
        r"[a-z']+",
        lambda m: m[0].capitalize() if m[0] in words.PROPER or m[0] == "i" else m[0],
        text,
    )
    return text[:1].upper() + text[1:]


def is_held_out(heard: str) -> bool:
    """A fixed tenth of the sentences with some variety, never used in training."""
    return len(heard.split()) >= 4 and zlib.crc32(heard.encode()) % 10 == 0


def make_dialogue(random: Random, *, turns: int | None = None) -> Dialogue:
    """A system prompt and one to four turns that may lean on it and on each other."""
    facts = make_facts(random) if random.random() < 0.35 else Facts()
    count = turns or random.choices((1, 2, 3, 4), (50, 25, 15, 10))[0]
    user = facts.user
    made: list[Turn] = []
    for _ in range(count):
        kind = None
        if count > 1 and user and random.random() < 0.3:
            kind = "ask_name"
        elif count > 1 and not user and random.random() < 0.2:
            kind = "tell_name"
        elif facts != Facts() and random.random() < 0.5:
            kind = random.choice(
                [k for k, f in (("time", facts.time), ("fact_day", facts.day),
                                ("weather", facts.weather), ("place", facts.place),
                                ("ask_name", facts.user), ("self", facts.own)) if f]
            )  # fmt: skip
        turn = make_turn(random, kind, facts=facts, user=user)
        if turn.kind == "tell_name":
            user = turn.heard.split()[-1]
        made.append(turn)
    return Dialogue(system_text(random, facts), tuple(made))


def make_facts(random: Random) -> Facts:
    """Some facts for a system prompt, at least one."""
    keep = random.randint(1, 63)
    return Facts(
        time=words.clock(random.randint(1, 12), random.randint(0, 59)) if keep & 1 else "",
        day=random.choice(words.DAYS) if keep & 2 and random.random() < 0.5 else "",
        weather=random.choice(words.WEATHERS) if keep & 4 and random.random() < 0.5 else "",
        place=random.choice(list(words.CAPITALS.values())) if keep & 8 and keep & 1 else "",
        user=random.choice(words.NAMES) if keep & 16 else "",
        own=random.choice(words.NAMES) if keep & 32 else "",
    ) if keep != 2 else Facts(day=random.choice(words.DAYS))  # fmt: skip


def system_text(random: Random, facts: Facts) -> str:
    """The system prompt that states `facts`."""
    stated = [
        text
        for fact, text in (
            (facts.own, f"your name is {facts.own}."),
            (facts.user, f"the user is called {facts.user}."),
            (facts.time, f"the time is {facts.time}."),
            (facts.day, f"today is {facts.day}."),
            (facts.weather, f"the weather is {facts.weather}."),
            (facts.place, f"we are in {facts.place}."),
        )
        if fact
    ]
    random.shuffle(stated)
    head = random.choice(SYSTEMS)
    return " ".join(part for part in (head, *map(sentence, stated)) if part)


def make_turn(
    random: Random, kind: str | None = None, *, facts: Facts | None = None, user: str = ""
) -> Turn:
    """One turn of `kind`, or of a kind drawn by the domain's weights."""
    facts = facts or Facts()
    kind = kind or random.choices(KINDS, list(_KINDS.values()))[0]
    turn = _MAKERS[kind](random, facts, user)
    if kind in _BARE or turn.language:
        return turn
    polite = _polite(random, turn.heard)
    return Turn(kind, polite, turn.answer, about_picture=turn.about_picture)


def _polite(random: Random, heard: str) -> str:
    draw = random.random()
    if draw < 0.12:
        is_question = heard.startswith(("what ", "how ", "which "))
        return f"{'please tell me' if is_question else 'please'} {heard}"
    if draw < 0.2:
        return f"{heard} please"
    if draw < 0.27:
        return f"hey {heard}"
    if draw < 0.34:
        return f"okay {heard}"
    return heard


def _arithmetic(random: Random, facts: Facts, user: str) -> Turn:
    sign = random.choice(("plus", "plus", "minus", "times"))
    if sign == "plus":
        total = random.randint(0, 40)
        left = random.randint(0, total)
        right, result = total - left, total
    elif sign == "minus":
        left = random.randint(0, 40)
        right = random.randint(0, left)
        result = left - right
    else:
        left, right = random.choice([(a, b) for a in range(11) for b in range(11) if a * b <= 40])
        result = left * right
    task = f"{number(left)} {sign} {number(right)}"
    ask = random.choice(("what is ", "how much is ", "what's ", "calculate "))
    return Turn("arithmetic", ask + task, sentence(f"{task} is {number(result)}."))


def _count(random: Random, facts: Facts, user: str) -> Turn:
    draw = random.random()
    if draw < 0.5:
        first = random.randint(0, 15)
        last = first + random.randint(2, 6)
        steps, heard = range(first, last + 1), f"count from {number(first)} to {number(last)}"
    elif draw < 0.8:
        last = random.randint(3, 8)
        steps, heard = range(1, last + 1), f"count to {number(last)}"
    else:
        first = random.randint(3, 12)
        last = max(0, first - random.randint(2, 6))
        steps = range(first, last - 1, -1)
        heard = f"count down from {number(first)} to {number(last)}"
    return Turn("count", heard, sentence(", ".join(map(number, steps)) + "."))


def _spell(random: Random, facts: Facts, user: str) -> Turn:
    word = random.choice((*words.NOUNS, *words.ADJECTIVES, *words.NAMES))
    ask = random.choice(("how do you spell ", "spell ", "spell the word ", "can you spell "))
    return Turn("spell", ask + word, " ".join(word.upper()) + ".")


def _repeat(random: Random, facts: Facts, user: str) -> Turn:
    said = (
        f"the {random.choice(words.ADJECTIVES)} {random.choice(words.NOUNS)} "
        f"{random.choice(words.VERBS)} the {random.choice(words.NOUNS)}"
    )
    if random.random() < 0.4:
        said += " " + random.choice(words.TAILS)
    ask = random.choice(("repeat after me ", "say ", "please say ", "repeat "))
    return Turn("repeat", ask + said, sentence(said + "."))


def _capital(random: Random, facts: Facts, user: str) -> Turn:
    country = random.choice(list(words.CAPITALS))
    ask = random.choice(
        ("what is the capital of ", "what's the capital of ", "which city is the capital of ",
         "name the capital of ")
    )  # fmt: skip
    answer = f"the capital of {country} is {words.CAPITALS[country]}."
    return Turn("capital", ask + country, sentence(answer))


def _opposite(random: Random, facts: Facts, user: str) -> Turn:
    pair = random.choice(list(words.OPPOSITES.items()))
    left, right = pair if random.random() < 0.5 else pair[::-1]
    ask = random.choice(
        ("what is the opposite of ", "what's the opposite of ", "tell me the opposite of ")
    )
    return Turn("opposite", ask + left, f"The opposite of {left} is {right}.")


def _neighbor(kind: str, names: list[str], ask: str, random: Random) -> Turn:
    index, step = random.randrange(len(names)), random.choice((1, -1))
    side = "after" if step > 0 else "before"
    other = names[(index + step) % len(names)]
    answer = sentence(f"{other} comes {side} {names[index]}.")
    return Turn(kind, f"{ask} comes {side} {names[index]}", answer)


def _sound(random: Random, facts: Facts, user: str) -> Turn:
    animal = random.choice(list(words.SOUNDS))
    return Turn("sound", f"what does a {animal} say", f"A {animal} says {words.SOUNDS[animal]}.")


def _legs(random: Random, facts: Facts, user: str) -> Turn:
    animal = random.choice(list(words.LEGS))
    a = "an" if animal == "ant" else "a"
    count = number(words.LEGS[animal]) if words.LEGS[animal] else "no"
    heard = f"how many legs does {a} {animal} have"
    return Turn("legs", heard, sentence(f"{a} {animal} has {count} legs."))


def _color(random: Random, facts: Facts, user: str) -> Turn:
    thing = random.choice(list(words.COLORS_OF))
    heard = random.choice(("what color is ", "what is the color of ")) + thing
    return Turn("color", heard, sentence(f"{thing} is {words.COLORS_OF[thing]}."))


def _mix(random: Random, facts: Facts, user: str) -> Turn:
    (left, right), result = random.choice(list(words.MIXES.items()))
    if random.random() < 0.5:
        left, right = right, left
    ask = random.choice(("what do you get when you mix ", "mix "))
    return Turn("mix", f"{ask}{left} and {right}", sentence(f"{left} and {right} make {result}."))


def _compare(random: Random, facts: Facts, user: str) -> Turn:
    left, right = random.sample(range(100), 2)
    side = random.choice(("bigger", "smaller"))
    result = max(left, right) if side == "bigger" else min(left, right)
    heard = f"which is {side} {number(left)} or {number(right)}"
    return Turn("compare", heard, sentence(f"{number(result)} is {side}."))


def _double(random: Random, facts: Facts, user: str) -> Turn:
    value = random.randint(1, 20)
    heard = random.choice(("double ", "what is twice ")) + number(value)
    return Turn("double", heard, sentence(f"twice {number(value)} is {number(2 * value)}."))


def _greet(random: Random, facts: Facts, user: str) -> Turn:
    heard = random.choice(
        ("hello", "hi", "hi there", "hello there", "hey", "good morning", "good evening",
         "good afternoon")
    )  # fmt: skip
    back = heard if heard.startswith("good") else "hello"
    return Turn("greet", heard, sentence(f"{back}, how can i help you?"))


def _self(random: Random, facts: Facts, user: str) -> Turn:
    heard = random.choice(("what is your name", "who are you", "tell me your name"))
    if facts.own:
        return Turn("self", heard, sentence(f"my name is {facts.own}."))
    return Turn("self", heard, "My name is Pocket, I am a small assistant.")


def _fixed(kind: str, asks: tuple[str, ...], answer: str, random: Random) -> Turn:
    return Turn(kind, random.choice(asks), answer)


def _tell_name(random: Random, facts: Facts, user: str) -> Turn:
    name = random.choice(words.NAMES)
    ask = random.choice(("my name is ", "i am ", "hello my name is ", "call me "))
    return Turn("tell_name", ask + name, sentence(f"nice to meet you, {name}."))


def _ask_name(random: Random, facts: Facts, user: str) -> Turn:
    heard = random.choice(("what is my name", "who am i", "do you know my name", "tell me my name"))
    if user:
        return Turn("ask_name", heard, sentence(f"your name is {user}."))
    return Turn("ask_name", heard, "You did not tell me your name.")


def _stated(
    kind: str, asks: tuple[str, ...], fact: str, known: str, unknown: str, random: Random
) -> Turn:
    return Turn(kind, random.choice(asks), sentence(known) if fact else unknown)


def _far(random: Random, facts: Facts, user: str) -> Turn:
    draw = random.random()
    if draw < 0.2:
        spoken = random.choice(words.FAR_QUESTIONS)
    elif draw < 0.45:
        parts = (words.FAR_SUBJECTS, words.FAR_VERBS, words.FAR_OBJECTS)
        spoken = " ".join(random.choice(part) for part in parts)
    else:
        spoken = f"{random.choice(words.FAR_STARTS)} {random.choice(words.FAR_THINGS)}"
        if random.random() < 0.35:
            spoken += f" {random.choice(words.FAR_ENDS)}"
    return Turn("far", FAR, NOT_KNOWN, spoken=spoken)


def _foreign(random: Random, facts: Facts, user: str) -> Turn:
    language = random.choice(list(words.FOREIGN_LINES))
    spoken = random.choice(words.FOREIGN_LINES[language])
    return Turn("foreign", UNCLEAR, NOT_CAUGHT, spoken=spoken, language=language)


def _picture_none(random: Random, facts: Facts, user: str) -> Turn:
    heard = random.choice(
        ("what do you see", "what color is the background", "how many shapes are there",
         "where is the star", "what color is the circle", "what shape is it")
    )  # fmt: skip
    return Turn("picture_none", heard, NO_PICTURE)


def scene_turn(random: Random, scene: Scene, kind: str | None = None) -> Turn:
    """A question about a drawn scene."""
    questions = scene.questions(random)
    if kind is not None:
        questions = [q for q in questions if q[0] == kind] or questions
    kind, heard, answer = random.choice(questions)
    if random.random() < 0.2:
        heard = _polite(random, heard)
    return Turn(f"picture_{kind}", heard, sentence(answer + "."), about_picture=True)


_MAKERS = {
    "arithmetic": _arithmetic,
    "count": _count,
    "spell": _spell,
    "repeat": _repeat,
    "capital": _capital,
    "opposite": _opposite,
    "day": lambda r, f, u: _neighbor("day", words.DAYS, "what day", r),
    "month": lambda r, f, u: _neighbor("month", words.MONTHS, "which month", r),
    "sound": _sound,
    "legs": _legs,
    "color": _color,
    "mix": _mix,
    "compare": _compare,
    "double": _double,
    "greet": _greet,
    "self": _self,
    "howare": lambda r, f, u: _fixed(
        "howare", ("how are you", "how are you doing", "how do you do"),
        "I am fine, thank you.", r
    ),
    "thanks": lambda r, f, u: _fixed(
        "thanks", ("thank you", "thanks", "thanks a lot", "thank you very much"),
        "You are welcome.", r
    ),
    "bye": lambda r, f, u: _fixed(
        "bye", ("goodbye", "bye", "bye bye", "see you later", "good night"),
        "Goodbye, talk to you soon.", r
    ),
    "stop": lambda r, f, u: _fixed(
        "stop", ("stop", "stop talking", "be quiet", "please stop"), "Okay, I will stop.", r
    ),
    "tell_name": _tell_name,
    "ask_name": _ask_name,
    "time": lambda r, f, u: _stated(
        "time", ("what time is it", "tell me the time", "what is the time",
                 "do you know what time it is"),
        f.time, f"it is {f.time}.", "I do not know the time.", r
    ),
    "fact_day": lambda r, f, u: _stated(
        "fact_day", ("what day is it", "what day is today"),
        f.day, f"today is {f.day}.", "I do not know the day.", r
    ),
    "weather": lambda r, f, u: _stated(
        "weather", ("how is the weather", "what is the weather like"),
        f.weather, f"the weather is {f.weather}.", "I do not know the weather.", r
    ),
    "place": lambda r, f, u: _stated(
        "place", ("where are we", "which city are we in"),
        f.place, f"we are in {f.place}.", "I do not know where we are.", r
    ),
    "far": _far,
    "foreign": _foreign,
    "picture_none": _picture_none,
}  # fmt: skip


def typed(random: Random, turn: Turn) -> str:
    """The question as somebody might type it: capitals, digits, punctuation or none of them."""
    text = turn.words
    if turn.kind in ("arithmetic", "compare", "double", "count") and random.random() < 0.4:
        for value in range(100, -1, -1):
            text = re.sub(rf"\b{number(value)}\b", str(value), text)
    if random.random() < 0.6:
        text = sentence(text)
    if random.random() < 0.6:
        is_question = turn.heard.startswith(
            ("what", "how", "which", "where", "who", "do ", "is ", "can ")
        )
        text += "?" if is_question else "."
    return text
