"""Conversations as token sequences, exactly as the views lay them out for the model.

A `Sample` is one training sequence: ids, what must be predicted, and where embeddings of sound and
pictures take the place of `<unk>`. The layouts are the official ones (docs/protocols of the model:
chat, half-duplex, duplex); what the pocket model adds is the *inner span*
`<perception> … </perception>` at the start of an answer: what it heard, and if the question is
about a picture, `<source_image>` and what it sees. The span is never spoken and never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tokenizers import Tokenizer

from training import dialogue
from training.dialogue import Dialogue, Turn
from training.pictures import Scene

IGNORED = -100
TEXT, SOUND, PICTURE = 0, 1, 2
UNIT_LIMIT_CHARS = 26
"""The duplex loop ends a unit at 28 characters. Source: sessions.md 4.4."""


@dataclass
class Sample:
    """One sequence. `kinds` says which ids are placeholders; `sounds` and `pictures` list, in
    order, whose embeddings belong there (indices chosen by the caller) and how many rows."""

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    sounds: list[tuple[int, int, int]] = field(default_factory=list)
    """(which, first row, rows)"""
    pictures: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)


class Writer:
    """Appends to a `Sample`."""

    def __init__(self, tokenizer: Tokenizer, queries: int = 16) -> None:
        self.tokenizer = tokenizer
        self.queries = queries
        self.sample = Sample()
        self._pending = ""
        self._unknown = tokenizer.token_to_id("<unk>")

    def text(self, text: str) -> Writer:
        """Given text, not predicted. Neighbouring texts are one text to the tokenizer."""
        self._pending += text
        return self

    def predict(self, text: str) -> Writer:
        """Text that the model must produce; begins and ends at special tokens."""
        self._flush()
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self._append(ids, TEXT, ids)
        return self

    def sound(self, which: int, first: int, rows: int) -> Writer:
        """`rows` embeddings of sound number `which`, from row `first`."""
        self._flush()
        self._append([self._unknown] * rows, SOUND)
        self.sample.sounds.append((which, first, rows))
        return self

    def picture(self, which: int) -> Writer:
        """`<image>`, the embeddings of picture `which`, `</image>`."""
        self.text("<image>")._flush()
        self._append([self._unknown] * self.queries, PICTURE)
        self.sample.pictures.append(which)
        return self.text("</image>")

    def done(self) -> Sample:
        self._flush()
        return self.sample

    def _flush(self) -> None:
        if self._pending:
            ids = self.tokenizer.encode(self._pending, add_special_tokens=False).ids
            self._pending = ""
            self._append(ids, TEXT)

    def _append(self, ids: Sequence[int], kind: int, labels: Sequence[int] | None = None) -> None:
        self.sample.ids += ids
        self.sample.kinds += [kind] * len(ids)
        self.sample.labels += list(labels) if labels else [IGNORED] * len(ids)


@dataclass(frozen=True, slots=True)
class Heard:
    """How a turn reaches the model: typed text, or rows of a sound; with a picture or without."""

    typed: str = ""
    sound: int = -1
    rows: int = 0
    picture: int = -1
    scene: Scene | None = None


def inner(turn: Turn, scene: Scene | None) -> str:
    """The inner span of an answer."""
    seen = f"<source_image> {scene.describe()}" if turn.about_picture and scene else ""
    return f"<perception> {turn.heard}{seen}</perception>"


def turn_based(
    tokenizer: Tokenizer,
    made: Dialogue,
    heard: Sequence[Heard],
    random: Random,
    *,
    is_seen: bool = True,
    voice: tuple[int, int] | None = None,
) -> Sample:
    """A chat or half-duplex conversation; every answer is predicted.

    Args:
        heard: one per turn.
        is_seen: False where the model has no eyes yet: the description of a picture is given.
        voice: (sound, rows) of reference audio in the system prompt.
    """
    writer = Writer(tokenizer)
    is_chat = random.random() < 0.4
    has_speech = not is_chat or random.random() < 0.6
    if made.system or voice:
        writer.text(f"<|im_start|>system\n{made.system}")
        if voice:
            writer.text("<|audio_start|>").sound(voice[0], 0, voice[1]).text("<|audio_end|>")
            writer.text(random.choice(dialogue.SYSTEMS[:5]))
        writer.text("<|im_end|>\n")
    joint = "\n" if is_chat and random.random() < 0.7 else ""
    for index, (turn, how) in enumerate(zip(made.turns, heard, strict=True)):
        is_last = index == len(made.turns) - 1
        writer.text("<|im_start|>user\n")
        if how.picture >= 0:
            if is_chat and random.random() < 0.5:
                writer.text("<image_id>0</image_id>")
            writer.picture(how.picture).text(joint)
        if how.sound >= 0:
            writer.text("<|audio_start|>").sound(how.sound, 0, how.rows).text("<|audio_end|>")
        else:
            writer.text(how.typed)
        writer.text("<|im_end|>\n")
        if is_chat and is_last and random.random() < 0.7:
            writer.text("<|im_end|>\n")  # the large model's web chat closes the turn twice
        writer.text("<|im_start|>assistant\n")
        if is_chat and not is_last:
            # History comes back from the client as plain text.
            writer.text(f"{turn.answer}<|im_end|>\n")
            continue
        writer.text("<think>\n\n</think>\n\n" + ("<|tts_bos|>" if has_speech else ""))
        span = inner(turn, how.scene)
        end = "<|tts_eos|>" if has_speech else "<|im_end|>"
        if how.scene is not None and turn.about_picture and not is_seen:
            head, tail = span.split("<source_image>")
            writer.predict(head + "<source_image>")
            writer.text(tail.removesuffix("</perception>"))
            writer.predict(f"</perception>{turn.answer}{end}")
        else:
            writer.predict(f"{span}{turn.answer}{end}")
        writer.text("<|im_end|>\n" if has_speech else "\n")
    return writer.done()


def speech_codes(word: str) -> float:
    """About how many codes of 40 ms a written word takes in the assistant's voice: 1.4 per letter,
    5 for a letter by name, 5.5 for a pause. Source: least squares over 250 answers of phase
    `codebook`, residual 4 codes a sentence."""
    letters = sum(c.isalpha() for c in word)
    spoken = 5.0 if letters == 1 and word not in ("I", "a") else 1.4 * letters
    return spoken + (5.5 if word.endswith((",", ".", "?")) else 0.0)


def unit_texts(answer: str) -> list[str]:
    """An answer cut into what is handed to the mouth in each unit.

    A word belongs to the unit in which it probably begins, and the last unit must be able to end
    what is still to be said: nothing can be spoken after it.
    """
    words = answer.split(" ")
    pieces: list[str] = []
    begins = 7.0  # breath before the first word, and what short words take beyond their letters
    for index, word in enumerate(words):
        ends = begins + speech_codes(word)
        is_last = index == len(words) - 1
        full = 25 * len(pieces)
        is_late = begins > full - 3 or (is_last and ends - 3 > full)
        if not pieces or is_late or len(pieces[-1]) + 1 + len(word) > UNIT_LIMIT_CHARS:
            pieces.append((" " if pieces else "") + word)
            begins = max(begins, 25 * (len(pieces) - 1))
            ends = begins + speech_codes(word)
        else:
            pieces[-1] += " " + word
        begins = ends
    return pieces
