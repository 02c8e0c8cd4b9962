"""From messages to ids: template, placeholders, bounds, padding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.golden import media, tiny
from tests.golden.case import Case, Checker

from parley.engine.segments import Audio, Mark, Marker, Segment, Text
from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.prompt.inputs import Media, chat_messages, fuse
from parley.models.minicpmo45.prompt.layout import (
    Part,
    Prompt,
    PromptPicture,
    PromptSound,
    answer_prompt,
    expand,
    render,
)
from parley.models.minicpmo45.vision_encoder.pictures import Pieces, cut


@dataclass(eq=False)
class Request:
    """One request, ready for the language model."""

    rendered: str
    prompt: Prompt
    pieces: list[Pieces]
    mel_lengths: list[int]
    signals: list[np.ndarray]

    def embeds(self, case: Case, *, chunked: bool = True) -> torch.Tensor:
        sound_encoder = tiny.sound_encoder(case.folder)
        audio = sound_encoder.hear(self.signals, chunked=chunked) if self.signals else None
        encoder = tiny.picture_encoder(case.folder)
        pictures = [
            torch.cat(
                [
                    encoder.tokens([patch], size)
                    for patch, size in zip(one.patches, one.sizes, strict=True)
                ]
            )
            for one in self.pieces
        ]
        return fuse(tiny.network(case.folder).llm, self.prompt, pictures, audio)


def segments_of(messages: list[dict[str, Any]], args: dict[str, Any]) -> list[Segment]:
    """Messages of a case as the engine's segments."""
    glue = "" if args.get("omni_mode") or args.get("stream_input") else "\n"
    segments: list[Segment] = []
    for spec in messages:
        spoken = media.message(spec)
        segments.append(Marker(Mark.TURN_START, spoken.role))
        for index, part in enumerate(spoken.parts):
            if index and glue:
                segments.append(Text(glue))
            segments.append(Text(part) if isinstance(part, str) else part)
        segments.append(Marker(Mark.TURN_END, spoken.role))
    return segments


def has_sound(messages: list[dict[str, Any]], args: dict[str, Any]) -> bool:
    """True if there is anything to hear in a conversation."""
    return any(isinstance(segment, Audio) for segment in segments_of(messages, args))


TAGS = {PromptPicture: "<image>./</image>", PromptSound: "<audio>./</audio>"}
"""How media look in the published template's text."""


def as_text(parts: list[Part]) -> str:
    return "".join(part if isinstance(part, str) else TAGS[type(part)] for part in parts)


def in_seconds(parts: list[Part]) -> list[Part]:
    """Parts with a pair of audio tags for every second of sound."""
    spread: list[Part] = []
    for part in parts:
        if isinstance(part, PromptSound):
            counts = [min(10, part.tokens - done) for done in range(0, max(1, part.tokens), 10)]
            spread += [PromptSound(count) for count in counts]
        else:
            spread.append(part)
    return spread


def truncated(prompt: Prompt, limit: int) -> Prompt:
    """At most `limit` ids, from the left; no case cuts through a picture or a clip."""
    kept = tuple(place for place in prompt.places if place.end <= limit)
    return Prompt(prompt.ids[:limit], kept)


def read(
    case: Case,
    messages: list[dict[str, Any]],
    args: dict[str, Any],
    *,
    answer: bool = True,
    hears: bool | None = None,
) -> Request:
    """Messages of a case, by the product's own path from segments to ids.

    Args:
        answer: append the generation prompt.
        hears: whether there is sound in any conversation of the batch; None looks at this one.
    """
    segments = segments_of(messages, args)
    has_audio = has_sound(messages, args) if hears is None else hears
    found = Media()
    numbered = args.get("use_image_id")
    listed = chat_messages(
        segments,
        found,
        max_slices=args.get("max_slice_nums"),
        with_id=True if numbered is None else numbered,
        pool_step=5,
    )
    if args.get("merge_audio_from_same_content") is False:
        found.groups = [[clip] for group in found.groups for clip in group]
    parts = render(listed)
    if answer and not args.get("teacher_forcing"):
        opening = answer_prompt(
            enable_thinking=args.get("enable_thinking", False),
            use_tts_template=args.get("use_tts_template", False) or has_audio,
        )
        parts.append(opening.removeprefix("<|im_end|>\n"))
    laid_out = in_seconds(parts) if args.get("stream_input") else parts
    prompt = truncated(
        expand(laid_out, tiny.words(case.folder), SliceRules()), args.get("max_inp_length", 8192)
    )
    signals = found.signals()
    lengths = [piece.shape[1] for piece in tiny.sound_encoder(case.folder).pieces(signals)]
    return Request(
        as_text(parts),
        prompt,
        [cut(pixels, limit, SliceRules()) for pixels, limit in found.pictures],
        lengths,
        signals,
    )


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    messages, args = given["msgs"], given.get("chat_args", {})
    batch = messages if isinstance(messages[0], list) else [messages]
    # One call has one template: sound in any conversation opens speech in all of them.
    hears = any(has_sound(sample, args) for sample in batch)
    requests = [read(case, sample, args, hears=hears) for sample in batch]
    check.equal("rendered", [request.rendered for request in requests], case.json["rendered"])
    longest = max(len(request.prompt.ids) for request in requests)
    for index, request in enumerate(requests):
        ids = list(request.prompt.ids)
        pad = longest - len(ids)
        check.equal(f"ids {index}", [0] * pad + ids, case.arrays["input_ids"][index])
        mask = [0] * pad + [1] * len(ids)
        check.equal(f"mask {index}", mask, case.arrays["attention_mask"][index].astype(int))
        places = [
            [place.start + pad, place.end + pad]
            for place in request.prompt.places
            if place.kind == "audio"
        ]
        check.equal(f"places {index}", places, case.json["audio_bounds"][index])
        sizes = [size for pieces in request.pieces for size in pieces.sizes]
        check.equal(f"tgt_sizes {index}", sizes, case.json["tgt_sizes"][index])
        check.equal(f"mel {index}", request.mel_lengths, case.json["audio_feature_lens"][index])
