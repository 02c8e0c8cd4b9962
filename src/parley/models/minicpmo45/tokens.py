"""Words and layout: special tokens, the chat template, unit and turn markers, placeholders.

Two steps lead from a conversation to token ids. `render` writes the chat template around messages
and gives a list of texts and media in order; `expand` turns that list into ids, with a run of
placeholder ids for each picture or sound and a note of where it is. Placeholders are found by that
note, never by searching the ids, so tags that a person types cannot be mistaken for media.

Source: model.md 3, 4.5, 6.4, 10; sessions.md 0, 2, 3.2.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Protocol

from parley.errors import BadInput, SetupError
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.vision import choose_grid

Role = Literal["system", "user", "assistant"]

IMAGE_MARK = "<image>./</image>"
AUDIO_MARK = "<audio>./</audio>"
"""How media look in rendered template text."""

NO_THOUGHT = "<think>\n\n</think>\n\n"
"""The empty think block that tells the model to answer at once."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the tokens the layout is made of. The defaults are those of the published tokenizer.

    Field names stand for the tokens in `_SPELLING`.
    """

    unk: int = 128244
    eos_word: int = 128247
    endoftext: int = 151643
    im_start: int = 151644
    im_end: int = 151645
    image: int = 151669
    image_end: int = 151670
    slice: int = 151679
    slice_end: int = 151680
    image_id: int = 151681
    image_id_end: int = 151682
    unit: int = 151683
    unit_end: int = 151684
    audio_start: int = 151697
    audio_end: int = 151699
    spk_bos: int = 151700
    spk_eos: int = 151702
    tts_bos: int = 151703
    tts_eos: int = 151704
    listen: int = 151705
    speak: int = 151706
    turn_eos: int = 151717
    chunk_eos: int = 151718
    chunk_tts_eos: int = 151721
    tts_pad: int = 151722

    @property
    def reply_terminators(self) -> tuple[int, ...]:
        """What ends a streamed reply. Source: model.md 3.2."""
        return (self.tts_eos, self.im_end, self.eos_word)

    @property
    def chat_terminators(self) -> tuple[int, ...]:
        """What ends a reply that is not streamed."""
        return (self.im_end, self.endoftext)

    @property
    def unit_terminators(self) -> tuple[int, ...]:
        """What ends one unit of duplex."""
        return (self.listen, self.chunk_eos, self.chunk_tts_eos)


_SPELLING = {
    "unk": "<unk>",
    "eos_word": "</s>",
    "endoftext": "<|endoftext|>",
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "image": "<image>",
    "image_end": "</image>",
    "slice": "<slice>",
    "slice_end": "</slice>",
    "image_id": "<image_id>",
    "image_id_end": "</image_id>",
    "unit": "<unit>",
    "unit_end": "</unit>",
    "audio_start": "<|audio_start|>",
    "audio_end": "<|audio_end|>",
    "spk_bos": "<|spk_bos|>",
    "spk_eos": "<|spk_eos|>",
    "tts_bos": "<|tts_bos|>",
    "tts_eos": "<|tts_eos|>",
    "listen": "<|listen|>",
    "speak": "<|speak|>",
    "turn_eos": "<|turn_eos|>",
    "chunk_eos": "<|chunk_eos|>",
    "chunk_tts_eos": "<|chunk_tts_eos|>",
    "tts_pad": "<|tts_pad|>",
}

SPOKEN_FORBIDDEN = ":：；#“”‘’@*【】「」()（）[]&/$"
"""Symbols a speaking reply must not contain. Those that are not vocabulary entries of their own
resolve to `<unk>`, so only `<unk>` is forbidden in their place. Source: model.md 10.6."""


class Words(Protocol):
    """Text to ids and back. The tokenizer of a checkpoint, or a recorded one in tests."""

    @property
    def ids(self) -> SpecialIds: ...

    @property
    def bad_ids(self) -> Sequence[int]:
        """Ids that a speaking model must not produce; from `tokenizer_config.json`."""
        ...

    @property
    def forbidden_symbols(self) -> Sequence[int]:
        """The ids that `SPOKEN_FORBIDDEN` resolves to."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """Ids that are no words: they vanish under `skip_special`."""
        ...

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        """Ids of a text. `literal`: tags in it are words, not tokens."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str: ...


class Vocabulary:
    """`Words` from a checkpoint folder's tokenizer files."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen2Tokenizer
        from transformers import logging as transformers_logging

        settings = folder / "tokenizer_config.json"
        absent = [
            file.name
            for file in (settings, folder / "vocab.json", folder / "merges.txt")
            if not file.is_file()
        ]
        if absent:
            raise SetupError(
                f"{folder} lacks the tokenizer files {', '.join(absent)}.",
                hint="They are part of the checkpoint's repository.",
            )
        # The class name in the file belongs to remote code; the files are Qwen2's.
        level = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity_error()
        try:
            self._tokenizer = Qwen2Tokenizer.from_pretrained(folder)
        finally:
            transformers_logging.set_verbosity(level)
        raw = json.loads(settings.read_text(encoding="utf-8"))
        self.bad_ids = tuple(int(token) for token in raw.get("bad_token_ids", ()))
        entries = self._tokenizer.get_vocab()
        lost = [text for text in _SPELLING.values() if text not in entries]
        if lost:
            raise SetupError(f"The tokenizer does not know {', '.join(lost)}.")
        self.ids = SpecialIds(
            **{entry.name: entries[_SPELLING[entry.name]] for entry in fields(SpecialIds)}
        )
        self.forbidden_symbols = tuple(
            sorted({entries.get(symbol, self.ids.unk) for symbol in SPOKEN_FORBIDDEN})
        )
        added = self._tokenizer.added_tokens_decoder
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.size = len(self._tokenizer)

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        if not text:
            return []
        found = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=literal, verbose=False
        )
        return list(found["input_ids"])

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        return self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )


# ------------------------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in a prompt: its place among the pictures, and its size, which decides its tokens.

    Args:
        index: 0-based number among all pictures of the request.
        width, height: of the original.
        max_slices: most tiles besides the overview; None means the processor's own limit.
        with_id: number it in the prompt.
    """

    index: int
    width: int
    height: int
    max_slices: int | None = None
    with_id: bool = True


@dataclass(frozen=True, slots=True)
class Sound:
    """A clip in a prompt.

    Args:
        index: 0-based number among all clips of the request.
        tokens: context tokens it takes.
        group: most tokens between one pair of audio tags; None puts all into one.
    """

    index: int
    tokens: int
    group: int | None = None


Part = str | Picture | Sound


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    role: Role
    parts: tuple[Part, ...]


def join_parts(parts: Iterable[Part], separator: str) -> tuple[Part, ...]:
    """Parts of one message with a separator between them; empty separators add nothing."""
    joined: list[Part] = []
    for part in parts:
        if joined and separator:
            joined.append(separator)
        joined.append(part)
    return tuple(joined)


def render(
    messages: Sequence[Message],
    *,
    generation_prompt: bool = False,
    enable_thinking: bool = False,
    use_tts_template: bool = False,
) -> list[Part]:
    """The chat template around messages. Equal to the tokenizer's own template (model.md 3.3)."""
    last_query = len(messages) - 1
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            last_query = index
            break
    out: list[Part] = []
    for index, message in enumerate(messages):
        out.append(f"<|im_start|>{message.role}\n")
        if message.role == "assistant":
            thought, content = split_thought(message.parts)
            is_last = index == len(messages) - 1
            if index > last_query and (is_last or thought):
                out.append("<think>\n" + thought.strip("\n") + "\n</think>\n\n")
                content = _strip_left(content)
            out.extend(content)
        else:
            out.extend(message.parts)
        out.append("<|im_end|>\n")
    if generation_prompt:
        out.append("<|im_start|>assistant\n")
        if not enable_thinking:
            out.append(NO_THOUGHT)
        if use_tts_template:
            out.append("<|tts_bos|>")
    return merge_texts(out)


def answer_prompt(*, enable_thinking: bool, use_tts_template: bool) -> str:
    """What is appended to a prefilled conversation before the model answers. It closes the open
    turn, also one that the template has closed already. Source: sessions.md 2.3."""
    return (
        "<|im_end|>\n<|im_start|>assistant\n"
        + ("" if enable_thinking else NO_THOUGHT)
        + ("<|tts_bos|>" if use_tts_template else "")
    )


def split_thought(parts: Sequence[Part]) -> tuple[str, tuple[Part, ...]]:
    """An assistant message's reasoning and its content without it."""
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if isinstance(part, str) and "</think>" in part:
            head, _, tail = part.rpartition("</think>")
            before = "".join(p for p in parts[:place] if isinstance(p, str)) + head
            before = before.split("</think>")[0].rstrip("\n")
            thought = before.split("<think>")[-1].lstrip("\n")
            return thought, (tail.lstrip("\n"), *parts[place + 1 :])
    return "", tuple(parts)


def _strip_left(parts: Sequence[Part]) -> tuple[Part, ...]:
    if parts and isinstance(parts[0], str):
        return (parts[0].lstrip("\n"), *parts[1:])
    return tuple(parts)


def merge_texts(parts: Iterable[Part]) -> list[Part]:
    """Neighbouring texts become one, because they are one to the tokenizer."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


def as_text(parts: Iterable[Part]) -> str:
    """Rendered parts as the published template text, with a tag for each medium."""
    return "".join(
        part if isinstance(part, str) else IMAGE_MARK if isinstance(part, Picture) else AUDIO_MARK
        for part in parts
    )


# ------------------------------------------------------------------------------------- prompts


@dataclass(frozen=True, slots=True)
class Place:
    """Ids [start, end) of a prompt stand for tokens of a medium.

    Args:
        kind: which list `index` counts in.
        index: number of the picture or clip.
        offset: first of the medium's tokens that belongs here; pictures count through all pieces.
    """

    kind: Literal["image", "audio"]
    index: int
    offset: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of a prompt and where its media are."""

    ids: tuple[int, ...]
    places: tuple[Place, ...] = field(default=())

    def followed_by(self, other: Prompt) -> Prompt:
        """This prompt and another one after it."""
        shift = len(self.ids)
        moved = tuple(
            replace(place, start=place.start + shift, end=place.end + shift)
            for place in other.places
        )
        return Prompt(self.ids + other.ids, self.places + moved)

    def truncated(self, limit: int) -> Prompt:
        """At most `limit` ids, from the left.

        Raises:
            BadInput: the cut would go through a picture or clip.
        """
        if len(self.ids) <= limit:
            return self
        for place in self.places:
            if place.start < limit < place.end:
                raise BadInput(
                    f"The request has {len(self.ids)} tokens, more than the {limit} that are "
                    "read, and the limit falls inside a picture or clip."
                )
        kept = tuple(place for place in self.places if place.end <= limit)
        return Prompt(self.ids[:limit], kept)


def expand(
    parts: Iterable[Part],
    words: Words,
    rules: SliceRules,
    *,
    queries: int = 64,
    literal: bool = False,
) -> Prompt:
    """Turn rendered parts into ids with placeholders.

    `<|listen|>` in texts is removed, as the published input pipeline does.
    """
    ids = words.ids
    out: list[int] = []
    places: list[Place] = []
    for part in merge_texts(parts):
        match part:
            case str():
                out.extend(
                    token for token in words.encode(part, literal=literal) if token != ids.listen
                )
            case Picture():
                _expand_picture(part, out, places, words, rules, queries)
            case Sound():
                _expand_sound(part, out, places, ids)
    return Prompt(tuple(out), tuple(places))


def _expand_picture(
    picture: Picture,
    out: list[int],
    places: list[Place],
    words: Words,
    rules: SliceRules,
    queries: int,
) -> None:
    ids = words.ids
    limit = rules.max_slices if picture.max_slices is None else picture.max_slices
    grid = choose_grid(picture.width, picture.height, limit, rules.resolution)
    if picture.with_id:
        out += [ids.image_id, *words.encode(str(picture.index)), ids.image_id_end]
    offset = 0

    def piece(before: int, after: int) -> None:
        nonlocal offset
        out.append(before)
        start = len(out)
        out.extend([ids.unk] * queries)
        places.append(Place("image", picture.index, offset, start, len(out)))
        offset += queries
        out.append(after)

    piece(ids.image, ids.image_end)
    if grid is None:
        return
    columns, rows = grid
    for row in range(rows):
        if row:
            out.extend(words.encode("\n"))
        for _ in range(columns):
            piece(ids.slice, ids.slice_end)


def _expand_sound(sound: Sound, out: list[int], places: list[Place], ids: SpecialIds) -> None:
    left = sound.tokens
    offset = 0
    while True:
        count = left if sound.group is None else min(left, sound.group)
        out.append(ids.audio_start)
        start = len(out)
        out.extend([ids.unk] * count)
        places.append(Place("audio", sound.index, offset, start, len(out)))
        out.append(ids.audio_end)
        offset += count
        left -= count
        if left <= 0:
            return
