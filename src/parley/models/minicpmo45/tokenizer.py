"""Special tokens, and text to ids and back.

The tokenizer of a checkpoint is Qwen2's with 105 added tokens; the layout of prompts is made of
those (`prompt/layout.py`). Source: model.md 3; sessions.md 0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Protocol

from parley.errors import SetupError


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the tokens the layout is made of. The defaults are those of the published tokenizer.

    Field names stand for the tokens in `TOKEN_TEXTS`.
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


TOKEN_TEXTS = {
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


class Tokenizer(Protocol):
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


def readable(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids as a user may see it: without any token of the layout.

    Two of those (`<unk>`, `</s>`) are ordinary entries of the vocabulary, so leaving out what is
    special is not enough.
    """
    layout = {*tokenizer.special_ids, *astuple(tokenizer.ids)}
    return tokenizer.decode([one for one in ids if one not in layout], skip_special=True)


class CheckpointTokenizer:
    """`Tokenizer` from a checkpoint folder's tokenizer files."""

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
        lost = [text for text in TOKEN_TEXTS.values() if text not in entries]
        if lost:
            raise SetupError(f"The tokenizer does not know {', '.join(lost)}.")
        self.ids = SpecialIds(
            **{entry.name: entries[TOKEN_TEXTS[entry.name]] for entry in fields(SpecialIds)}
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
        out: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return out
