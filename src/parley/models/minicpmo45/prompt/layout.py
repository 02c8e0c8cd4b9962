"""Prompt layout: the chat template, unit and turn markers, placeholders for media.

A conversation is converted to token ids in two steps. `render` writes the chat template around
messages and returns texts and media in order; `expand` converts that list to ids, with a run of
placeholder ids for each picture or clip and a record of its position. Placeholders are found by
that record, never by searching the ids, so tags that a person types cannot be mistaken for media.

Source: model.md 4.5, 6.4, 10; sessions.md 0, 2, 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.tokenizer import Tokenizer
from parley.models.minicpmo45.vision_encoder.pictures import choose_grid

Role = Literal["system", "user", "assistant"]
MediumKind = Literal["image", "audio"]

NO_THOUGHT = "<think>\n\n</think>\n\n"
"""The empty think block that makes the model answer without thinking."""


@dataclass(frozen=True, slots=True)
class PromptPicture:
    """A picture in a prompt: its index, and its size, which determines its number of tokens.

    Args:
        index: 0-based number among all pictures of the request.
        width, height: size of the original.
        max_slices: maximum number of tiles after the overview; None means the processor's own
            limit.
        with_id: number it in the prompt.
    """

    index: int
    width: int
    height: int
    max_slices: int | None = None
    with_id: bool = True


@dataclass(frozen=True, slots=True)
class PromptSound:
    """A clip in a prompt, and the number of its context tokens."""

    tokens: int


Part = str | PromptPicture | PromptSound


@dataclass(frozen=True, slots=True)
class PromptMessage:
    role: Role
    parts: tuple[Part, ...]


def render(messages: Sequence[PromptMessage]) -> list[Part]:
    """Write the chat template around messages, as the tokenizer's own template does (model.md
    3.3)."""
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
    return merge_texts(out)


def answer_prompt(*, enable_thinking: bool, use_tts_template: bool) -> str:
    """Text that is appended to a prefilled conversation before the model answers. It closes the
    open turn, even if the template has already closed it. Source: sessions.md 2.3."""
    return (
        "<|im_end|>\n<|im_start|>assistant\n"
        + ("" if enable_thinking else NO_THOUGHT)
        + ("<|tts_bos|>" if use_tts_template else "")
    )


def split_thought(parts: Sequence[Part]) -> tuple[str, tuple[Part, ...]]:
    """Returns an assistant message's reasoning, and its content without it."""
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
    """Join neighbouring texts, because the tokenizer reads them as one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Ids [start, end) of a prompt, which stand for a piece of a picture or for a clip. Those of a
    kind have the order of their media."""

    kind: MediumKind
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of a prompt and the positions of its media."""

    ids: tuple[int, ...]
    places: tuple[Placeholder, ...] = field(default=())

    def followed_by(self, other: Prompt) -> Prompt:
        shift = len(self.ids)
        moved = tuple(
            replace(place, start=place.start + shift, end=place.end + shift)
            for place in other.places
        )
        return Prompt(self.ids + other.ids, self.places + moved)


class PromptWriter:
    """Writes a prompt.

    Args:
        queries: number of tokens of a piece of a picture.
    """

    def __init__(self, tokenizer: Tokenizer, queries: int = 64) -> None:
        self._special, self._queries = tokenizer.ids, queries
        self.ids: list[int] = []
        self._places: list[Placeholder] = []

    @property
    def prompt(self) -> Prompt:
        return Prompt(tuple(self.ids), tuple(self._places))

    def sound(self, tokens: int) -> None:
        self._medium("audio", tokens)

    def picture(self, grid: tuple[int, int] | None, *, between_rows: Sequence[int] = ()) -> None:
        """Write the overview and the tiles, each between its tags.

        Args:
            grid: (columns, rows) of tiles.
            between_rows: ids between two rows of tiles.
        """
        special, queries = self._special, self._queries
        self.ids.append(special.image)
        self._medium("image", queries)
        self.ids.append(special.image_end)
        columns, rows = grid or (0, 0)
        for tile in range(columns * rows):
            if tile and tile % columns == 0:
                self.ids += between_rows
            self.ids.append(special.slice)
            self._medium("image", queries)
            self.ids.append(special.slice_end)

    def _medium(self, kind: MediumKind, count: int) -> None:
        start = len(self.ids)
        self.ids += [self._special.unk] * count
        self._places.append(Placeholder(kind, start, start + count))


def expand(
    parts: Iterable[Part],
    tokenizer: Tokenizer,
    rules: SliceRules,
    *,
    queries: int = 64,
    literal: bool = False,
) -> Prompt:
    """Convert rendered parts to ids with placeholders.

    `<|listen|>` in texts is removed, as the published input pipeline does.
    """
    special, line = tokenizer.ids, tokenizer.encode("\n")
    writer = PromptWriter(tokenizer, queries)
    for part in merge_texts(parts):
        match part:
            case str():
                ids = tokenizer.encode(part, literal=literal)
                writer.ids += [token for token in ids if token != special.listen]
            case PromptPicture():
                if part.with_id:
                    number = tokenizer.encode(str(part.index))
                    writer.ids += [special.image_id, *number, special.image_id_end]
                limit = rules.max_slice_nums if part.max_slices is None else part.max_slices
                grid = choose_grid(part.width, part.height, limit, rules.scale_resolution)
                writer.picture(grid, between_rows=line)
            case PromptSound():
                writer.ids.append(special.audio_start)
                writer.sound(part.tokens)
                writer.ids.append(special.audio_end)
    return writer.prompt
