"""The report card: every figure on freshly made material that training has not used.

Sentences are from the tenth that is held out, voices and pictures are drawn anew from the seed, and
the judge of the voice is pocketsphinx, which has nothing to do with us. Answers count only if they
are right to the letter. Greedy decoding on plain modules from the int8 files as shipped.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import soxr
import torch

from parley.engine.model import Model
from parley.engine.segments import Audio, Mark, Marker, Text
from parley.engine.work import Decoded, Opening, Prefill, Reply, Sampling, Work
from parley.media.pcm import Pcm
from parley.models.minicpmo45.audio import FIRST_LIVE_SAMPLES
from parley.models.pocket import quantized
from parley.models.pocket.loader import load_folder
from training import (
    codebook,
    dialogue,
    own_voice,
    pictures,
    sight,
    sound,
    synth,
    timeline,
    utterances,
    words,
)
from training.dialogue import Dialogue, Turn
from training.layout import Heard, Sample, Writer, turn_based
from training.sound import Samples
from training.talk import LiveTalk, Talker

SEEN = "spoken, voices seen in training"


@dataclass
class Figure:
    """One line of the report card.

    Args:
        value: a share (0..1), or milliseconds, or bytes, by `unit`.
        wanted: the threshold; `is_upper` if the value must stay below it. None: for information.
    """

    name: str
    value: float
    cases: int
    wanted: float | None = None
    is_upper: bool = False
    unit: str = "%"
    note: str = ""
    examples: list[str] = field(default_factory=list)

    @property
    def is_met(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value <= self.wanted if self.is_upper else self.value >= self.wanted

    def shown(self, value: float | None) -> str:
        if value is None:
            return "–"
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        if self.unit == "MB":
            return f"{value / 1e6:.1f} MB"
        return f"{value:.0f} {self.unit}"


def measure(folder: Path, *, cases: int, seed: int) -> Iterator[Figure]:
    """Every figure, as it is found.

    Args:
        folder: an exported checkpoint.
        cases: per figure; the duplex figures, a conversation each, use half.
        seed: of everything that is made; drawn from the clock by the command, so that nobody can
            train for it.
    """
    torch.set_num_threads(1)
    yield from _figures(Talker.load(folder), folder, cases, seed)


def understanding(folder: Path, *, cases: int, seed: int) -> Iterator[Figure]:
    """The figures that are made in seconds; what tests look at."""
    torch.set_num_threads(1)
    talker = Talker.load(folder)
    yield typed(talker, cases, seed)
    yield spoken(talker, cases, seed + 1, SEEN, 0.9)
    yield drawn(talker, cases, seed + 4, is_spoken=False)
    yield far(talker, cases // 2, seed + 6)


def _figures(talker: Talker, folder: Path, cases: int, seed: int) -> Iterator[Figure]:
    yield typed(talker, cases, seed)
    yield spoken(talker, cases, seed + 1, SEEN, 0.9)
    yield spoken(
        talker, cases, seed + 2, "spoken, voices never heard", 0.7, voice=synth.held_out_voice
    )
    yield spoken(talker, cases, seed + 3, "spoken, voices seen, noise at 10 dB", 0.75, snr_db=10.0)
    yield drawn(talker, cases, seed + 4, is_spoken=False)
    yield drawn(talker, cases // 2, seed + 5, is_spoken=True)
    yield far(talker, cases // 2, seed + 6)
    yield from voice(talker, cases, seed + 7)
    yield from duplex(talker, max(10, cases // 2), seed + 8)
    yield served(talker, folder, max(5, cases // 10), seed + 9)
    yield unit_cost(talker, 40)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    yield Figure("package data", size, 1, 20e6, is_upper=True, unit="MB")


# -------------------------------------------------------------------------------------- answers


def held_out_turn(
    random: Random, facts: dialogue.Facts, user: str, asked: set[str] | None = None
) -> Turn:
    """A turn of the domain that training never used, and that is not in `asked` yet."""
    asked = set() if asked is None else asked
    while True:
        kind = random.choice([k for k in dialogue.KINDS if k not in ("far", "foreign")])
        turn = dialogue.make_turn(random, kind, facts=facts, user=user)
        if dialogue.is_held_out(turn.heard) and turn.heard not in asked:
            asked.add(turn.heard)
            return turn


def held_out_dialogue(random: Random, asked: set[str] | None = None) -> Dialogue:
    """One held-out question, a third of them with facts in the system prompt."""
    facts = dialogue.make_facts(random) if random.random() < 0.33 else dialogue.Facts()
    system = dialogue.system_text(random, facts)
    return Dialogue(system, (held_out_turn(random, facts, facts.user, asked),))


def prompt(talker: Talker, made: Dialogue, heard: Sequence[Heard], seed: int) -> Sample:
    """The sequence up to where the last answer begins."""
    sample = turn_based(talker.tokenizer, made, heard, Random(seed))
    starts = [i for i, token in enumerate(sample.ids) if token == talker.ids["<perception>"]]
    end = starts[-1]
    return Sample(
        sample.ids[:end], sample.labels[:end], sample.kinds[:end], sample.sounds, sample.pictures
    )


def served(talker: Talker, folder: Path, cases: int, seed: int) -> Figure:
    """The same questions through the model that the server runs: the same words must come back."""
    model = load_folder(folder)
    random, outcomes = Random(seed), []
    for _ in range(cases):
        made = held_out_dialogue(random)
        said = utterances.say(random, made.turns[0], tail_s=0.8, snr_db=30.0)
        if len(said.samples) < FIRST_LIVE_SAMPLES:
            continue  # the server pads short turns on the left
        writer = Writer(talker.tokenizer)
        writer.text(f"<|im_start|>system\n{made.system}<|im_end|>\n<|im_start|>user\n")
        rows = talker.hear(said.samples)
        writer.text("<|audio_start|>").sound(0, 0, len(rows)).text("<|audio_end|><|im_end|>\n")
        writer.text("<|im_start|>assistant\n<think>\n\n</think>\n\n<|tts_bos|>")
        mine = talker.reply(talker.embed(writer.done(), [rows], [])).answer
        theirs = _serve(model, made.system, said.samples)
        outcomes.append((mine == theirs, f"{mine} ≠ {theirs}"))
    model.unload()
    return _tally("same answers through the server's model", outcomes, None)


def _serve(model: Model, system: str, samples: Samples) -> str:
    """One half-duplex turn on the engine's contract."""
    sampling = Sampling(is_greedy=True, repetition_penalty=1.0)
    works: list[Work] = [
        Opening("half_duplex", seed=1, speak=False),
        Prefill((Marker(Mark.TURN_START, "system"), Text(system),
                 Marker(Mark.TURN_END, "system"))),
        Prefill((Marker(Mark.TURN_START, "user"), Audio(Pcm(samples, 16_000), "turn"))),
        Reply(speak=False, max_new_tokens=60, sampling=sampling),
    ]  # fmt: skip
    result = None
    for work in works:
        job = model.start(0, work)
        while job.stage is not None:
            model.step(job.stage, [job])
        result = job.result
    assert isinstance(result, Decoded)
    return result.text


def _tally(name: str, outcomes: list[tuple[bool, str]], wanted: float | None) -> Figure:
    wrong = [text for is_right, text in outcomes if not is_right]
    share = sum(is_right for is_right, _ in outcomes) / max(1, len(outcomes))
    return Figure(name, share, len(outcomes), wanted, examples=wrong[:6])


def typed(talker: Talker, cases: int, seed: int) -> Figure:
    """Text in, text out: what is left when nothing has to be heard."""
    random, outcomes, asked = Random(seed), [], set[str]()
    for case in range(cases):
        made = held_out_dialogue(random, asked)
        turn = made.turns[0]
        question = dialogue.typed(random, turn)
        sample = prompt(talker, made, [Heard(typed=question)], case)
        reply = talker.reply(talker.embed(sample, [], []))
        outcomes.append((reply.answer == turn.answer, f"{question} → {reply.answer}"))
    return _tally("typed, unseen sentences", outcomes, None)


def spoken(
    talker: Talker,
    cases: int,
    seed: int,
    name: str,
    wanted: float,
    *,
    voice: Callable[[Random], synth.Voice] = synth.train_voice,
    snr_db: float | None = None,
) -> Figure:
    """Exact answers to spoken questions, half as turns, half as live seconds."""
    random, outcomes, errors, count = Random(seed), [], 0, 0
    asked: set[str] = set()
    for case in range(cases):
        made = held_out_dialogue(random, asked)
        turn = made.turns[0]
        said = utterances.say(
            random, turn, voice=voice(random), tail_s=0.8, snr_db=snr_db if snr_db else 30.0
        )
        rows = talker.hear(said.samples, is_chunked=case % 2 == 1)
        sample = prompt(talker, made, [Heard(sound=0, rows=len(rows))], case)
        reply = talker.reply(talker.embed(sample, [rows], []))
        outcomes.append(
            (reply.answer == turn.answer, f"{turn.heard} → {reply.heard} → {reply.answer}")
        )
        errors += word_errors(reply.heard.split(), turn.heard.split())
        count += len(turn.heard.split())
    figure = _tally(f"{name}: exact answers", outcomes, wanted)
    figure.note = f"word error rate of what it heard: {100 * errors / max(1, count):.1f} %"
    return figure


def drawn(talker: Talker, cases: int, seed: int, *, is_spoken: bool) -> Figure:
    """Questions about fresh pictures, every kind alike."""
    random, outcomes = Random(seed), []
    by_kind: dict[str, list[bool]] = {}
    for case in range(cases):
        scene = pictures.make_scene(random)
        kinds = sorted({kind for kind, _, _ in scene.questions(random)})
        turn = dialogue.scene_turn(random, scene, random.choice(kinds))
        seen = talker.look(sight.picture(scene, random, random.choice(list(sight.SIZES))))
        made = Dialogue(random.choice(dialogue.SYSTEMS), (turn,))
        sounds = []
        if is_spoken:
            sounds = [talker.hear(utterances.say(random, turn, tail_s=0.8).samples)]
            how = Heard(sound=0, rows=len(sounds[0]), picture=0, scene=scene)
        else:
            how = Heard(typed=dialogue.typed(random, turn), picture=0, scene=scene)
        sample = prompt(talker, made, [how], case)
        reply = talker.reply(talker.embed(sample, sounds, [seen]))
        is_right = reply.answer == turn.answer
        by_kind.setdefault(turn.kind.removeprefix("picture_"), []).append(is_right)
        outcomes.append((is_right, f"{turn.heard} ({scene.describe()}) → {reply.answer}"))
    name = "drawn pictures, asked by voice" if is_spoken else "drawn pictures, all question kinds"
    figure = _tally(name, outcomes, None if is_spoken else 0.85)
    figure.note = ", ".join(
        f"{kind} {sum(right)}/{len(right)}" for kind, right in sorted(by_kind.items())
    )
    return figure


def far(talker: Talker, cases: int, seed: int) -> Figure:
    """Speech outside the domain, other languages and noise: an honest sentence is right."""
    random, outcomes = Random(seed), []
    honest = (dialogue.NOT_KNOWN, dialogue.NOT_CAUGHT)
    for case in range(cases):
        draw = random.random()
        language = ""
        if draw < 0.7:
            text = random.choice(words.FAR_HELD_OUT)
        else:
            language = random.choice(list(words.FOREIGN_HELD_OUT))
            text = random.choice(words.FOREIGN_HELD_OUT[language])
        turn = Turn("far", "", "", spoken=text, language=language)
        said = utterances.say(random, turn, tail_s=0.8)
        rows = talker.hear(said.samples)
        made = Dialogue(random.choice(dialogue.SYSTEMS), (turn,))
        sample = prompt(talker, made, [Heard(sound=0, rows=len(rows))], case)
        reply = talker.reply(talker.embed(sample, [rows], []))
        outcomes.append((reply.answer in honest, f"{text} → {reply.heard} → {reply.answer}"))
    return _tally("out of domain answered honestly", outcomes, 0.8)


# ---------------------------------------------------------------------------------------- voice


class Judge:
    """pocketsphinx with a grammar of the domain's answers: it may choose among `sentences`."""

    def __init__(self, sentences: Sequence[str]) -> None:
        import tempfile

        from pocketsphinx import Decoder, get_model_path

        models = Path(get_model_path())
        dictionary = models / "en-us" / "cmudict-en-us.dict"
        self.known = {
            line.split()[0] for line in dictionary.read_text().splitlines() if line.strip()
        }
        usable = sorted({plain(s) for s in sentences if self.can_hear(s)})
        with tempfile.NamedTemporaryFile("w", suffix=".gram", delete=False) as file:
            file.write("#JSGF V1.0;\ngrammar answers;\npublic <answer> = ")
            file.write("\n | ".join(usable) + ";\n")
        self.decoder = Decoder(
            hmm=str(models / "en-us" / "en-us"),
            dict=str(dictionary),
            jsgf=file.name,
            loglevel="FATAL",
        )
        Path(file.name).unlink()

    def can_hear(self, sentence: str) -> bool:
        return all(word in self.known for word in plain(sentence).split())

    def hear(self, samples: Samples, rate_hz: int) -> list[str]:
        wave = np.asarray(soxr.resample(samples, rate_hz, 16_000), np.float32)
        wave = np.pad(wave / (np.abs(wave).max() + 1e-6) * 0.5, 3000)
        self.decoder.start_utt()
        self.decoder.process_raw((wave * 32767).astype(np.int16).tobytes(), full_utt=True)
        self.decoder.end_utt()
        found = self.decoder.hyp()
        return re.sub(r"\(\d\)", "", found.hypstr).split() if found else []


def plain(sentence: str) -> str:
    """Lower-case words, as a recogniser's dictionary has them; letters by name."""
    return " ".join(re.sub("[^a-z' ]", "", sentence.lower()).split())


def voice(talker: Talker, cases: int, seed: int) -> Iterator[Figure]:
    """Word errors of the independent recogniser: original, codes alone, and the model's mouth."""
    random = Random(seed)
    pool = sorted({codebook.sentence_to_say(random) for _ in range(900)})
    judge = Judge(pool)
    random.shuffle(pool)
    chosen = [s for s in pool if judge.can_hear(s)][:cases]
    errors = dict.fromkeys(("original", "mouth"), 0)
    examples = []
    count = 0
    for index, sentence in enumerate(chosen):
        wanted = plain(sentence).split()
        count += len(wanted)
        original = own_voice.say(sentence)
        errors["original"] += word_errors(judge.hear(original.samples, own_voice.RATE_HZ), wanted)
        ids = talker.tokenizer.encode(sentence, add_special_tokens=False).ids
        codes = talker.say(ids, temperature=0.8, seed=index)
        heard = judge.hear(talker.sound_of(codes), own_voice.RATE_HZ) if codes else []
        errors["mouth"] += word_errors(heard, wanted)
        if heard != wanted:
            examples.append(f"{' '.join(wanted)} → {' '.join(heard)}")
    yield Figure(
        "its own voice: word error rate (pocketsphinx)", errors["mouth"] / count, len(chosen),
        0.08, is_upper=True, examples=examples[:6],
        note=f"the synthesiser it learnt from: {100 * errors['original'] / count:.1f} %; "
        f"closed grammar of {len(pool)} answers",
    )  # fmt: skip


def word_errors(heard: Sequence[str], wanted: Sequence[str]) -> int:
    """Insertions, deletions and substitutions between two word lists."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(wanted, 1):
        before, row[0] = row[:], i
        for j, other in enumerate(heard, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other))
    return row[-1]


# --------------------------------------------------------------------------------------- duplex


def _live(talker: Talker, line: timeline.Timeline, system: str) -> list[bool]:
    """Which units spoke."""
    talk = LiveTalk(talker, system)
    rows = talker.hear_live(line.samples)
    return [not talk.unit(rows[10 * u : 10 * u + 10]).is_listen for u in range(line.units)]


def _question(random: Random, kinds: Sequence[str]) -> Turn:
    while True:
        turn = dialogue.make_turn(random, random.choice(kinds))
        if dialogue.is_held_out(turn.heard):
            return turn


def duplex(talker: Talker, cases: int, seed: int) -> Iterator[Figure]:
    """Starting, not starting, and stopping, second by second."""
    random = Random(seed)
    kinds = ("arithmetic", "capital", "opposite", "spell", "repeat", "compare", "count")
    splittable = ("arithmetic", "capital", "opposite", "spell", "compare", "count")
    started: list[tuple[bool, str]] = []
    false: list[tuple[bool, str]] = []
    for case in range(cases):
        line = timeline.make(
            random, [_question(random, kinds)], forced=0, pause=False, interrupt=False
        )
        speaks = _live(talker, line, random.choice(dialogue.SYSTEMS[:2]))
        _, ends, turn = line.questions[0]
        first = speaks.index(True) if True in speaks else None
        is_good = first is not None and int(ends) <= first <= int(ends) + 1
        started.append((is_good, f"{turn.heard}: ends {ends:.2f} s, starts in unit {first}"))
        if case % 2:
            line = timeline.make(random, [], noise_only=True)
            speaks = _live(talker, line, dialogue.SYSTEMS[0])
            false.append((True in speaks, "noise"))
        else:
            line = timeline.make(
                random, [_question(random, splittable)], forced=0, pause=True, interrupt=False
            )
            _, ends, turn = line.questions[0]
            speaks = _live(talker, line, dialogue.SYSTEMS[0])
            is_false = any(speaks[: int(ends)])
            false.append((is_false, f"pause in: {turn.heard}"))
    yield _tally("duplex: starts within one unit after the question", started, 0.95)
    share = sum(is_false for is_false, _ in false) / len(false)
    yield Figure(
        "duplex: false starts in pauses and noise", share, len(false), 0.05, is_upper=True,
        examples=[text for is_false, text in false if is_false][:6],
    )  # fmt: skip
    stopped = [s for _ in range(cases) if (s := _interruption(talker, random)) is not None]
    yield _tally("duplex: stops within one unit when interrupted", stopped, 0.9)


def _interruption(talker: Talker, random: Random) -> tuple[bool, str] | None:
    """Ask for something long, talk over the answer; None where no answer began at all."""
    question = _question(random, ("count", "repeat"))
    other = _question(random, ("capital", "arithmetic"))
    voice = synth.train_voice(random)
    first = utterances.say(random, question, voice=voice, lead_s=0, tail_s=0, is_clean=True)
    second = utterances.say(random, other, voice=voice, lead_s=0, tail_s=0, is_clean=True)
    samples = np.zeros(14 * sound.RATE_HZ, np.float32)
    at = int(random.uniform(0.2, 1.2) * sound.RATE_HZ)
    samples[at : at + len(first.samples)] += first.samples
    talk = LiveTalk(talker, dialogue.SYSTEMS[0])
    start = begins = None
    for unit in range(14):
        part = sound.add_noise(samples, sound.noise(len(samples), Random(unit * 0 + 5)), 30.0)
        rows = talker.hear_live(part[: (unit + 1) * sound.RATE_HZ])
        outcome = talk.unit(rows[10 * unit : 10 * unit + 10])
        if start is None and not outcome.is_listen:
            start = unit
            begins = unit + 1 + random.uniform(0.05, 0.9)
            at = int(begins * sound.RATE_HZ)
            samples[at : at + len(second.samples)] += second.samples[: len(samples) - at]
        elif start is not None and begins is not None and unit >= int(begins):
            if outcome.is_listen or (outcome.ends and not outcome.text):
                return True, ""
            if unit > int(begins):
                return False, f"{question.heard}: talked over at {begins:.2f} s"
            if outcome.ends:
                return None  # it was finished anyway
        elif start is not None and outcome.ends:
            return None
    return None


# ----------------------------------------------------------------------------------------- cost


def unit_cost(talker: Talker, units: int) -> Figure:
    """95th percentile of a whole speaking unit on one core: ears, a frame, prefill, 20 text
    tokens, 25 codes, vocoder."""
    draw = np.random.default_rng(0)
    wave = draw.standard_normal(16_560).astype(np.float32) * 0.05
    pixels = np.full((240, 320, 3), 128, np.uint8)
    llm = talker.pocket.llm
    caches = llm.model.new_caches()
    spent = []
    ids = talker.tokenizer.encode(" what is the capital of france please tell me").ids
    with torch.inference_mode():
        llm.model(torch.randn(1, 400, talker.pocket.shape.hidden), caches=caches)
        for _ in range(units):
            kept = [list(cache) for cache in caches]
            began = time.thread_time()
            rows = talker.hear(wave, is_chunked=True)
            seen = talker.look(pixels)
            hidden = llm.model(torch.cat([seen, rows])[None], caches=kept)
            for _ in range(20):
                token = int(llm.logits(hidden[0, -1]).argmax())
                hidden = llm.model(llm.embed(torch.tensor([[token]])), caches=kept)
            codes = _codes(talker, ids, 25)
            if talker.vocoder is not None:
                talker.sound_of(codes)
            spent.append(1000 * (time.thread_time() - began))
    value = float(np.percentile(spent, 95))
    note = f"processor time of one thread, median {np.median(spent):.0f} ms"
    return Figure("one 1 s unit on one core, p95", value, units, 250, True, "ms", note)


def _codes(talker: Talker, ids: list[int], count: int) -> list[int]:
    mouth = talker.pocket.tts
    caches = mouth.model.new_caches()
    hidden = mouth.model(mouth.emb_text(torch.tensor([ids])), caches=caches)
    codes: list[int] = []
    while len(codes) < count:
        codes.append(int(mouth.head_code[0](hidden[0, -1])[: mouth.codes].argmax()))
        hidden = mouth.model(mouth.emb_code[0](torch.tensor([codes[-1:]])), caches=caches)
    return codes


# ---------------------------------------------------------------------------------------- paper


def as_markdown(figures: Sequence[Figure], folder: Path, seed: int, cases: int) -> str:
    """The table, and what went wrong."""
    digest = hashlib.sha256((folder / quantized.WEIGHTS_FILE).read_bytes()).hexdigest()[:12]
    lines = [
        "# The pocket model's report card",
        "",
        f"Made by `parley pocket report` on {datetime.date.today()}; weights {digest}, "
        f"seed {seed}, {cases} cases asked for.",
        "Sentences, pictures and noise are made fresh for each report and are not in the training "
        "material; a wrong letter makes an answer wrong. No recordings of people were used.",
        "",
        "| figure | reached | wanted | cases | |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        sign = {True: "met", False: "not met", None: ""}[figure.is_met]
        limit = "–" if figure.wanted is None else (
            f"{'≤' if figure.is_upper else '≥'} {figure.shown(figure.wanted)}"
        )  # fmt: skip
        lines.append(
            f"| {figure.name} | {figure.shown(figure.value)} | {limit} | {figure.cases} | {sign} |"
        )
    lines += ["", "## Notes", ""]
    lines += [f"- {figure.name}: {figure.note}" for figure in figures if figure.note]
    lines += ["", "## Some of what went wrong", ""]
    for figure in figures:
        lines += [f"- {figure.name}: `{text}`" for text in figure.examples]
    return "\n".join(lines) + "\n"


def as_json(figures: Sequence[Figure]) -> str:
    """For programs."""
    return json.dumps(
        [{"name": f.name, "value": f.value, "wanted": f.wanted, "cases": f.cases,
          "met": f.is_met} for f in figures], indent=1,
    )  # fmt: skip
