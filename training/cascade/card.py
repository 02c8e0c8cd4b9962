"""The report card: what the pocket model does when it is asked through a server.

    python -m training.cascade.card --run FOLDER [--only PART …]      # continues where it stopped
    python -m training.cascade.card --run FOLDER --report docs/pocket-report.md

Every case is one line of `FOLDER/results.jsonl`. Nothing that is asked here was part of training:
the lines are in `cases/` and in `tests/models/cascade/newcomer.txt`. Needs a checkout, libflite1,
for the recordings of people Debian's asterisk-core-sounds-en-g722 with asterisk-core-sounds-en, and
for the photographs a folder that holds those of `cases/photographs.txt` (`--photographs`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from training.cascade import noises
from training.cascade.conversing import (
    Call,
    Samples,
    Server,
    Turns,
    heard,
    serving,
    told_of,
    typed,
)
from training.cascade.newcomer import LINES as NEWCOMER
from training.cascade.speakers import FIVE, RATE_HZ, Voice, speak

CASES = Path(__file__).parent / "cases"
HONEST = re.compile(
    r"don't|do not|can't|can not|cannot|couldn't|haven't|have not|am not able|not sure|no idea|"
    r"not told|only know|not able|didn't catch|did not understand|didn't understand"
)
CONTROL = re.compile(r"<\||\|>|</?[a-z_]+>|\(note:|\ufffd", re.I)
MINUTES_OF_NOISE = 30
ASTERISK = Path("/usr/share/asterisk/sounds/en_US_f_Allison")


class Book:
    """Results so far, on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        self.done = {row["key"] for row in self.rows}

    def write(self, part: str, key: str, **facts: Any) -> None:
        row = {"part": part, "key": key, **facts}
        self.rows.append(row)
        self.done.add(key)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, part: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["part"] == part]


def rows_of(path: Path) -> list[list[str]]:
    lines = path.read_text("utf-8").splitlines()
    return [line.split(" | ") for line in lines if line.strip() and not line.startswith("#")]


def is_right(pattern: str, answer: str) -> bool:
    return bool(re.search(pattern, answer.lower())) and len(answer) < 300


# ---- what is asked ---------------------------------------------------------------------------


def ask_typed(server: Server, book: Book) -> None:
    for name, path in (("typed", CASES / "typed.txt"), ("blind", CASES / "blind.txt"),
                       ("newcomer", NEWCOMER)):  # fmt: skip
        for number, (kind, said, *rest) in enumerate(rows_of(path)):
            key = f"{name}:{number}"
            if key in book.done:
                continue
            answer = typed(server, said.split(" / "))[-1]
            pattern = " | ".join(rest)
            book.write(name, key, kind=kind, said=said, answer=answer, ok=is_right(pattern, answer))


def ask_honest(server: Server, book: Book) -> None:
    for number, (said, pattern) in enumerate(rows_of(CASES / "honest.txt")):
        key = f"honest:{number}"
        if key in book.done:
            continue
        (answer,) = typed(server, [said])
        is_honest = bool(HONEST.search(answer.lower()))
        ok = is_honest or (pattern != "-" and is_right(pattern, answer))
        book.write("honest", key, said=said, answer=answer, ok=ok)


TELLING = ("My name is {}.", "Hello, I'm {}.", "You can call me {}.", "The name's {}, by the way.")
FILLERS = (["What is 3 plus 4?"], ["Tell me a joke.", "Thanks!"], [], ["I like walking."])
ASKING = ("What is my name?", "Do you remember my name?", "Who am I?", "Say my name, please.")


def ask_names(server: Server, book: Book) -> None:
    names = (CASES / "names.txt").read_text().split()
    for number in range(2 * len(names)):
        name, key = names[number // 2], f"names:{number}"
        if key in book.done:
            continue
        r = Random(number)
        told = r.choice(TELLING).format(name)
        turns = [told, *r.choice(FILLERS), r.choice(ASKING)]
        answer = typed(server, turns)[-1]
        book.write("names", key, said=turns, answer=answer, ok=name.lower() in answer.lower())


def questions(name: str = "spoken") -> list[tuple[str, str]]:
    return [(row[0], " | ".join(row[1:])) for row in rows_of(CASES / f"{name}.txt")]


def cases_of(part: str) -> Iterator[tuple[str, Voice, list[tuple[str, str, str]]]]:
    """Sessions: a name, a voice, and (key, question, pattern) for each question of it."""
    asked = questions()
    for voice in FIVE:
        for start in range(0, len(asked), 8):
            some = [
                (f"{part}:{voice.name}:{start + n}", text, pattern)
                for n, (text, pattern) in enumerate(asked[start : start + 8])
            ]
            yield f"{part}_{voice.name}_{start}", voice, some


def ask_half(server: Server, book: Book) -> None:
    for name, voice, some in cases_of("half"):
        left = [case for case in some if case[0] not in book.done]
        if not left:
            continue
        session = Turns(server, name.replace("-", ""))
        for key, text, pattern in left:
            reply = session.ask(speak(text, voice))
            ok = is_right(pattern, reply["answer"])
            book.write("half", key, voice=voice.name, said=text, ok=ok, **reply)
        session.close()


SPOILT = {
    "clean": lambda speech, random: speech, "telephone": noises.telephone,
    "reverb": noises.reverberated, "noisy": noises.noisy,
    "quiet": lambda speech, random: 0.05 * speech,
    "fast": lambda speech, random: speech, "slow": lambda speech, random: speech,
}  # fmt: skip
PACE = {"fast": 1.3, "slow": 0.77}


def ask_fresh(server: Server, book: Book) -> None:
    """The second list of questions, each by two of the five voices in turn."""
    asked = questions("spoken2")
    _ask_spoilt(server, book, "fresh", "clean", asked, 2)


def ask_spoilt(server: Server, book: Book) -> None:
    """The first list by telephone, in an echoing room, in noise, 26 dB quieter, faster and slower,
    each question by one voice."""
    for how in ("telephone", "reverb", "noisy", "quiet", "fast", "slow"):
        _ask_spoilt(server, book, how, how, questions(), 1)


def _ask_spoilt(server: Server, book: Book, part: str, how: str,
                asked: list[tuple[str, str]], voices: int) -> None:  # fmt: skip
    for number, (text, pattern) in enumerate(asked):
        for turn in range(voices):
            voice = FIVE[(number + 2 * turn) % len(FIVE)]
            key = f"{part}:{number}:{voice.name}"
            if key in book.done:
                continue
            session = Turns(server, f"{part}{number}{turn}")
            paced = replace(voice, rate=voice.rate * PACE.get(how, 1.0))
            speech = SPOILT[how](speak(text, paced), np.random.default_rng(number))
            try:
                reply = session.ask(speech)
            except TimeoutError:
                reply = {"answer": "", "first_ms": None}  # it did not notice speech
            ok = is_right(pattern, reply["answer"])
            book.write(part, key, voice=voice.name, said=text, ok=ok, **reply)
            session.wire.socket.close()


def ask_duplex(server: Server, book: Book) -> None:
    for name, voice, some in cases_of("duplex"):
        left = [case for case in some if case[0] not in book.done]
        if not left:
            continue
        call = Call(server, name.replace("-", ""))
        r = Random(name)
        for _ in range(3):
            call.unit()
        for key, text, pattern in left:
            answer = call.ask(speak(text, voice), lead_s=r.uniform(0, 0.9))
            ok = is_right(pattern, answer)
            ms = [round(one) for one in call.units_ms]
            call.units_ms.clear()
            book.write(
                "duplex", key, voice=voice.name, said=text, answer=answer, ok=ok, units_ms=ms
            )
            call.unit()
        call.close()


def ask_late(server: Server, book: Book) -> None:
    """Ten minutes of duplex with a question four times a minute; the last two minutes count."""
    asked = questions()
    for index, voice in enumerate(FIVE):
        if f"minute10:{voice.name}:end" in book.done:
            continue
        call = Call(server, f"late{index}")
        units, number = 0, 0
        while units < 600:
            for _ in range(10):
                call.unit()
            text, pattern = asked[(7 * number + index) % len(asked)]
            answer = call.ask(speak(text, voice), lead_s=0.3)
            units = len(call.units_ms)
            key = f"minute10:{voice.name}:{number}"
            if units > 480 and key not in book.done:
                ok = is_right(pattern, answer)
                book.write("minute10", key, voice=voice.name, said=text, answer=answer, ok=ok)
            number += 1
        ms = [round(one) for one in call.units_ms]
        book.write("calls", f"minute10:{voice.name}:end", units_ms=ms)
        call.close()


def ask_turn40(server: Server, book: Book) -> None:
    asked = questions()
    for index, voice in enumerate(FIVE):
        if f"turn40:{voice.name}:end" in book.done:
            continue
        session = Turns(server, f"forty{index}")
        for number in range(47):
            text, pattern = asked[(5 * number + index) % len(asked)]
            reply = session.ask(speak(text, voice))
            key = f"turn40:{voice.name}:{number}"
            if number >= 39 and key not in book.done:
                ok = is_right(pattern, reply["answer"])
                book.write("turn40", key, voice=voice.name, said=text, ok=ok, **reply)
        book.write("ends", f"turn40:{voice.name}:end")
        session.close()


def ask_noise(server: Server, book: Book) -> None:
    """Half an hour in six calls of five minutes, of each kind a quarter."""
    for part in range(MINUTES_OF_NOISE // 5):
        key = f"noise:{part}"
        if key in book.done:
            continue
        call = Call(server, f"noise{part}")
        random = np.random.default_rng(part)
        begun: list[str] = []
        texts: list[str] = []
        was_speaking = False
        for number in range(300):
            kind = ("silence", "coughs", "clicks", "music")[number // 75]
            message = call.unit(noise_of(kind, number, random))
            speaks = not message["is_listen"]
            if speaks and not was_speaking:
                begun.append(kind)
            texts.append(message.get("text") or "")
            was_speaking = speaks and not message.get("end_of_turn")
        call.close()
        book.write("noise", key, begun=begun, answer=" ".join("".join(texts).split()))


def noise_of(kind: str, number: int, random: np.random.Generator) -> Samples | None:
    if kind == "music":
        return noises.music(random)
    if kind == "silence" or number % 3:
        return None
    return noises.cough(random) if kind == "coughs" else noises.click(random)


def ask_people(server: Server, book: Book) -> None:
    """Words heard in recordings of a person, which come with transcripts."""
    import av

    from training.cascade.voicecard import distance, words_of

    for number, (path, text) in enumerate(recordings()):
        key = f"people:{number}"
        if key in book.done:
            continue
        with av.open(str(path), format="g722") as file:
            frames = [frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]
        samples = (np.concatenate(frames) / 32768).astype(np.float32)
        found = heard(server, samples)
        wanted = words_of(text)
        wrong = distance(wanted, words_of(found))
        book.write("people", key, said=text, answer=found, wrong=wrong, words=len(wanted))


def recordings() -> list[tuple[Path, str]]:
    """Prompts of four to twelve words with their transcripts, every second of them."""
    (listing,) = Path("/usr/share/doc/asterisk-core-sounds-en").glob("core-sounds-en.txt*")
    text = (
        gzip.decompress(listing.read_bytes()) if listing.suffix == ".gz" else listing.read_bytes()
    )
    found = []
    for line in text.decode("utf-8", "replace").splitlines():
        name, _, words = line.partition(":")
        path = ASTERISK / f"{name.strip()}.g722"
        if path.is_file() and 4 <= len(words.split()) <= 12 and "(" not in words:
            found.append((path, words.strip()))
    return found[::2]


def ask_photographs(server: Server, book: Book, folder: Path | None) -> None:
    """What a photograph shows: right, unsure, or surely wrong."""
    if folder is None:
        print("photographs: no --photographs FOLDER, left out")
        return
    for name, pattern in rows_of(CASES / "photographs.txt"):
        key = f"photographs:{name}"
        if key in book.done:
            continue
        (path, *_) = sorted(folder.rglob(name))
        answer = told_of(server, path.read_bytes(), "What do you see?")
        unsure = not re.search("looks like|i see", answer.lower())
        ok = is_right(pattern, answer)
        book.write("photographs", key, said=name, answer=answer, ok=ok, unsure=unsure)


def measure_cost(server: Server, book: Book) -> None:
    for turn in range(10):
        typed(server, [f"What is {turn} plus 8?", "Tell me a story."])
    book.write(
        "cost", f"cost:{len(book.of('cost'))}", ready_s=server.ready_s, memory_mb=server.memory_mb()
    )


LATENCY_STARTS = 3
LATENCY_UNITS = 600


def measure_latency(folder: Path, book: Book) -> None:
    """What depends on the machine's being quiet, in some minutes: starts, half-duplex, and a call
    of ten minutes with a question every quarter of a minute. Each run is one row."""
    load = [os.getloadavg()[0]]
    ready_s, memory_mb = [], 0.0
    for number in range(LATENCY_STARTS):
        with serving(folder) as server:
            ready_s.append(server.ready_s)
            if number == LATENCY_STARTS - 1:
                first_ms = _first_sounds(server)
                units_ms = _units(server)
                memory_mb = server.memory_mb()
    load.append(os.getloadavg()[0])
    facts = {"first_ms": first_ms, "units_ms": units_ms, "memory_mb": memory_mb}
    book.write("latency", f"latency:{len(book.of('latency'))}", load=load, ready_s=ready_s, **facts)
    p50, p95 = np.percentile(first_ms, [50, 95])
    print(f"load {load[0]:.1f} to {load[1]:.1f}; ready {ready_s}; half-duplex first sound p50 {p50:.0f} "
          f"p95 {p95:.0f} ms of {len(first_ms)}; units p50 {np.percentile(units_ms, 50):.0f} "
          f"p95 {np.percentile(units_ms, 95):.0f} worst {max(units_ms):.0f} ms, "
          f"late {sum(ms > 1000 for ms in units_ms)} of {len(units_ms)}; {memory_mb:.0f} MB")  # fmt: skip


def _first_sounds(server: Server) -> list[float]:
    """Of every question, by two voices in turn."""
    asked = questions()
    found: list[float] = []
    for index in range(2):
        session = Turns(server, f"latency{index}")
        for number, (text, _) in enumerate(asked):
            reply = session.ask(speak(text, FIVE[(number + 2 * index) % len(FIVE)]))
            found += [reply["first_ms"]] if reply["first_ms"] else []
        session.close()
    return found


def _units(server: Server) -> list[float]:
    asked = questions()
    call = Call(server, "latency")
    number = 0
    while len(call.units_ms) < LATENCY_UNITS:
        for _ in range(10):
            call.unit()
        voice = FIVE[number % len(FIVE)]
        call.ask(speak(asked[7 * number % len(asked)][0], voice), lead_s=0.3)
        number += 1
    call.close()
    return call.units_ms[:LATENCY_UNITS]


PARTS: dict[str, Callable[[Server, Book], None]] = {
    "typed": ask_typed, "honest": ask_honest, "names": ask_names, "half": ask_half,
    "fresh": ask_fresh, "spoilt": ask_spoilt,
    "duplex": ask_duplex, "people": ask_people, "noise": ask_noise, "minute10": ask_late,
    "turn40": ask_turn40, "cost": measure_cost,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--only", nargs="*", choices=[*PARTS, "photographs", "latency"], default=list(PARTS)
    )
    parser.add_argument("--report", type=Path)
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--busy", default="an idle machine", help="what else it was doing")
    options = parser.parse_args()
    book = Book(options.run)
    if options.report:
        from training.cascade.cardtext import as_markdown

        options.report.write_text(as_markdown(book, options.busy), "utf-8")
        return
    assert RATE_HZ == 16_000
    for part in options.only:
        if part == "latency":
            measure_latency(options.run, book)
            continue
        # A server for each part: memory and late faults of one do not touch the next.
        with serving(options.run) as server:
            if part == "photographs":
                ask_photographs(server, book, options.photographs)
            else:
                PARTS[part](server, book)
            print(part, "done", len(book.of(part)), flush=True)


if __name__ == "__main__":
    main()
