"""Phase `mouth`: text to speech codes, in every way the text arrives.

The same sentences are laid out as the three drivers of the speech decoder feed them: whole (chat),
in blocks of ten rows that each end in an end code (half-duplex), and in units of 25 codes with the
next unit's text coming when its second begins (duplex). Sentences are spoken once and kept in
files; the layouts are drawn anew in every step.

The pocket mouth speaks from the text alone: the projection of the brain's states is kept at zero,
so that the mouth can be trained, and stays right, whatever happens to the brain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from training import own_voice
from training.codebook import Codebook, sentence_to_say
from training.layout import IGNORED, unit_texts
from training.nets import Mouth
from training.own_voice import Said, SpokenWord
from training.trainer import Batch, Losses, Phase, Run, save

BLOCK_ROWS = 10
"""Text rows of one half-duplex block. Source: sessions.md 2.4."""
UNIT_CODES = 25
LINES_PER_FILE = 500
CODE_NOISE = 0.15
"""Share of codes replaced at random in the input, so that a wrong code does not derail the rest."""


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence as text ids, its codes, and for each id up to which code it is spoken.

    `unit_of` says in which duplex unit each id is handed over.
    """

    ids: list[int]
    codes: list[int]
    ends: list[int]
    unit_of: list[int]


def align(tokenizer: Tokenizer, said: Said) -> tuple[list[int], list[int], list[int]] | None:
    """Ids of a sentence, the code at which each has been spoken, and their units; None where the
    synthesiser's words cannot be matched to the text."""
    written = said.text.split(" ")
    found = _match(written, list(said.words))
    if found is None:
        return None
    encoded = tokenizer.encode(said.text, add_special_tokens=False)
    units: list[int] = []
    for number, piece in enumerate(unit_texts(said.text)):
        units += [number] * len(piece.split())
    ends, unit_of = [], []
    for first, last in encoded.offsets:
        index = min(said.text[: max(first, last - 1)].count(" "), len(written) - 1)
        if said.text[first:last].startswith(" ") and last - first > 1:
            index = min(said.text[: first + 1].count(" "), len(written) - 1)
        ends.append(min(said.codes, round(found[index])))
        unit_of.append(units[index])
    ends[-1] = said.codes
    return encoded.ids, ends, unit_of


def _match(written: list[str], spoken: list[SpokenWord]) -> list[float] | None:
    """The code at which each written word ends."""
    ends: list[float] = []
    at = 0
    for word in written:
        wanted = re.sub("[^a-z]", "", word.lower())
        if len(wanted) == 1 and at < len(spoken):
            at += 1
        else:
            got = ""
            while at < len(spoken) and len(got) < len(wanted):
                got += re.sub("[^a-z]", "", spoken[at].text.lower())
                at += 1
            if got != wanted:
                return None
        if at == 0:
            return None
        ends.append(spoken[at - 1].ends)
    return ends if at == len(spoken) else None


def prepare(run: Run, tokenizer: Tokenizer, book: Codebook, count: int) -> list[Line]:
    """`count` different sentences, spoken and coded; continues files that are there already."""
    lines: list[Line] = []
    seen: set[str] = set()
    for number in range((count + LINES_PER_FILE - 1) // LINES_PER_FILE):
        path = run.path / "lines" / f"{number:04d}.pt"
        if path.exists():
            content = torch.load(path, weights_only=True)
        else:
            content = _speak_file(run.seed * 6_000_011 + number, book, seen)
            save(path, content)
        for text, codes, words, total in content:
            seen.add(text)
            placed = tuple(SpokenWord(*word) for word in words)
            said = _Placed(text, placed, total)
            aligned = align(tokenizer, said)  # type: ignore[arg-type]
            if aligned is not None:
                lines.append(Line(aligned[0], codes, aligned[1], aligned[2]))
    return lines


@dataclass(frozen=True, slots=True)
class _Placed:
    """What `align` needs of a `Said` whose samples are gone."""

    text: str
    words: tuple[SpokenWord, ...]
    codes: int


def _speak_file(seed: int, book: Codebook, seen: set[str]) -> list[tuple]:
    random = Random(seed)
    content: list[tuple] = []
    known = set(seen)
    while len(content) < LINES_PER_FILE:
        text = sentence_to_say(random)
        if text in known and random.random() > 0.02:
            continue
        known.add(text)
        said = own_voice.say(text)
        words = [(w.text, float(w.begins), float(w.ends)) for w in said.words]
        content.append((text, book.encode(said.mel()), words, said.codes))
    return content


@dataclass
class Sequence:
    """Mouth input: kind per place (0 text row, 1 code) with its id, and the target behind it."""

    ids: list[int]
    kinds: list[int]
    labels: list[int]

    def rows(self, ids: list[int]) -> None:
        self.ids += ids
        self.kinds += [0] * len(ids)
        self.labels += [IGNORED] * len(ids)

    def speak(self, codes: list[int], end: int | None) -> None:
        """Codes after a begin row (which must be the last row); `end` is the end code, or None
        where the block is cut off by its length."""
        if codes or end is not None:
            self.labels[-1] = codes[0] if codes else end  # type: ignore[assignment]
        for index, code in enumerate(codes):
            self.ids.append(code)
            self.kinds.append(1)
            following = codes[index + 1] if index + 1 < len(codes) else end
            self.labels.append(IGNORED if following is None else following)


@dataclass(frozen=True, slots=True)
class Marks:
    """Ids of rows that are not words."""

    audio_bos: int
    text_eos: int
    turn_eos: int
    end_code: int
    silence: int


def whole(line: Line, marks: Marks) -> Sequence:
    """Chat: everything, then speech to its end."""
    out = Sequence([], [], [])
    out.rows([*line.ids, marks.text_eos, marks.audio_bos])
    out.speak(line.codes, marks.end_code)
    return out


def in_blocks(line: Line, marks: Marks) -> Sequence:
    """Half-duplex: ten rows at a time, each block spoken to its end."""
    out = Sequence([], [], [])
    spoken = 0
    for first in range(0, len(line.ids), BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, len(line.ids))
        is_final = last == len(line.ids)
        out.rows([*line.ids[first:last], *([marks.text_eos] if is_final else []), marks.audio_bos])
        until = len(line.codes) if is_final else max(spoken, line.ends[last - 1])
        out.speak(line.codes[spoken:until], marks.end_code)
        spoken = until
    return out


def in_units(line: Line, marks: Marks) -> Sequence:
    """Duplex: 25 codes a unit; where the text runs out the mouth waits in silence."""
    out = Sequence([], [], [])
    units = line.unit_of[-1] + 1
    spoken = 0
    for unit in range(units):
        ids = [i for i, u in zip(line.ids, line.unit_of, strict=True) if u == unit]
        is_final = unit == units - 1
        out.rows([*ids, *([marks.turn_eos] if is_final else []), marks.audio_bos])
        known = max(
            (e for e, u in zip(line.ends, line.unit_of, strict=True) if u <= unit), default=0
        )
        until = len(line.codes) if is_final else known
        codes = line.codes[spoken : min(until, spoken + UNIT_CODES)]
        spoken += len(codes)
        if is_final:
            is_cut = len(codes) == UNIT_CODES
            out.speak(codes, None if is_cut else marks.end_code)
        else:
            codes = codes + [marks.silence] * (UNIT_CODES - len(codes))
            out.speak(codes, None)
    return out


def build(
    run: Run,
    mouth: Mouth,
    tokenizer: Tokenizer,
    book: Codebook,
    *,
    minutes: float,
    rows: int,
    lines: int,
) -> Phase:
    marks = marks_of(tokenizer, book)
    nn.init.zeros_(mouth.projector_semantic.linear2.weight)
    nn.init.zeros_(mouth.projector_semantic.linear2.bias)
    mouth.projector_semantic.requires_grad_(False)
    said = prepare(run, tokenizer, book, lines)

    def make(index: int) -> Batch:
        random = Random(run.seed * 7_000_003 + index)
        chosen = random.sample(said, 4 * rows)
        # Neighbours in length share a step.
        chosen.sort(key=lambda line: len(line.codes))
        at = random.randrange(0, 3 * rows + 1)
        layouts = [random.choice((whole, in_blocks, in_units)) for _ in range(rows)]
        made = [
            layout(line, marks)
            for layout, line in zip(layouts, chosen[at : at + rows], strict=True)
        ]
        return collate(made, random)

    def losses(batch: Batch) -> Losses:
        rows_in = torch.where(
            (batch["kinds"] == 0)[..., None],
            mouth.emb_text(batch["texts"]),
            mouth.emb_code[0](batch["codes"]),
        )
        hidden = mouth.model(rows_in)
        wanted = batch["labels"] != IGNORED
        logits = mouth.head_code[0](hidden[wanted]).float()
        loss = functional.cross_entropy(logits, batch["labels"][wanted])
        right = (logits.argmax(-1) == batch["labels"][wanted]).float().mean()
        return {"total": loss, "right": right}

    return Phase("mouth", {"tts": mouth}, make, losses, minutes, rate=1.5e-3, weight_decay=0.05)


def marks_of(tokenizer: Tokenizer, book: Codebook) -> Marks:
    """The rows that are not words, by name."""
    return Marks(
        audio_bos=tokenizer.token_to_id("<focus>"),
        text_eos=tokenizer.token_to_id("</perception>"),
        turn_eos=tokenizer.token_to_id("<|turn_eos|>"),
        end_code=len(book.centers),
        silence=book.silence,
    )


def collate(made: list[Sequence], random: Random) -> Batch:
    """Right-padded; a share of the input codes is replaced by others."""
    length = max(len(s.ids) for s in made)
    length += -length % 32
    texts = torch.zeros(len(made), length, dtype=torch.long)
    codes = torch.zeros(len(made), length, dtype=torch.long)
    kinds = torch.zeros(len(made), length, dtype=torch.long)
    labels = torch.full((len(made), length), IGNORED)
    generator = torch.Generator().manual_seed(random.getrandbits(40))
    for row, sequence in enumerate(made):
        count = len(sequence.ids)
        ids, kind = torch.tensor(sequence.ids), torch.tensor(sequence.kinds)
        texts[row, :count] = torch.where(kind == 0, ids, 0)
        codes[row, :count] = torch.where(kind == 1, ids, 0)
        kinds[row, :count] = kind
        labels[row, :count] = torch.tensor(sequence.labels)
    noisy = (torch.rand(codes.shape, generator=generator) < CODE_NOISE) & (kinds == 1)
    other = torch.randint(0, 2048, codes.shape, generator=generator)
    codes = torch.where(noisy, other, codes)
    return {"texts": texts, "codes": codes, "kinds": kinds, "labels": labels}
