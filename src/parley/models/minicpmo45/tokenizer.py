"""Special tokens, and conversion between text and ids.

The tokenizer of a checkpoint is Qwen2's with 105 added tokens, of which the layout of prompts
consists (`prompt/layout.py`). Source: model.md 3; sessions.md 0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final, Protocol

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from parley.errors import SetupError


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the tokens of the layout. The defaults are those of the published tokenizer.
    `TOKEN_TEXTS` maps field names to tokens.
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
        """Ids that end a streamed reply. Source: model.md 3.2."""
        return (self.tts_eos, self.im_end, self.eos_word)

    @property
    def chat_terminators(self) -> tuple[int, ...]:
        """Ids that end a reply in one piece."""
        return (self.im_end, self.endoftext)

    @property
    def unit_terminators(self) -> tuple[int, ...]:
        """Ids that end one unit of duplex."""
        return (self.listen, self.chunk_eos, self.chunk_tts_eos)


_OTHER_TEXTS: Final = {
    "unk": "<unk>",
    "eos_word": "</s>",
    "image": "<image>",
    "image_end": "</image>",
    "slice": "<slice>",
    "slice_end": "</slice>",
    "image_id": "<image_id>",
    "image_id_end": "</image_id>",
    "unit": "<unit>",
    "unit_end": "</unit>",
}

TOKEN_TEXTS: Final = {
    one.name: _OTHER_TEXTS.get(one.name, f"<|{one.name}|>") for one in fields(SpecialIds)
}
"""Token of every field of `SpecialIds`; most are the field's name between bars, such as
`<|tts_bos|>`."""

SPOKEN_FORBIDDEN = ":：；#“”‘’@*【】「」()（）[]&/$"
"""Symbols that a speaking reply must not contain. Symbols without their own vocabulary entry
resolve to `<unk>`, so for them only `<unk>` is forbidden. Source: model.md 10.6."""


class Tokenizer(Protocol):
    """Converts text to ids and back: the tokenizer of a checkpoint, or a recorded one in tests."""

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
    def rules(self) -> tokenizers.Tokenizer | None:
        """The tokenizer for grammars; None if it has none."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """Ids that are not text; `skip_special` removes them."""
        ...

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        """Ids of a text. `literal`: tags in it are plain text, not tokens."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str: ...


def readable(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids for display to a user, without the tokens of the layout.

    Two of these (`<unk>`, `</s>`) are ordinary entries of the vocabulary, so `skip_special` does
    not remove them.
    """
    layout = {*tokenizer.special_ids, *astuple(tokenizer.ids)}
    return tokenizer.decode([one for one in ids if one not in layout], skip_special=True)


_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern of the pieces into which a text is split before its bytes are paired. Source: model.md
3."""


class CheckpointTokenizer:
    """`Tokenizer` from a checkpoint folder's tokenizer files."""

    def __init__(self, folder: Path) -> None:
        settings = folder / "tokenizer_config.json"
        vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
        absent = [file.name for file in (settings, vocabulary, merges) if not file.is_file()]
        if absent:
            raise SetupError(
                f"{folder} lacks the tokenizer files {', '.join(absent)}.",
                hint="They are part of the checkpoint's repository.",
            )
        try:
            raw = json.loads(settings.read_text(encoding="utf-8"))
            added = [
                (int(number), AddedToken(**token))
                for number, token in raw.get("added_tokens_decoder", {}).items()
            ]
            pairs = BPE.from_file(str(vocabulary), str(merges))
        except Exception as error:  # `tokenizers` raises no class of its own
            raise SetupError(f"The tokenizer in {folder} cannot be read: {error}") from error
        added.sort(key=lambda entry: entry[0])
        self.rules = _tokenizer(pairs, [token for _, token in added])
        self._literal = _tokenizer(pairs, [token for _, token in added])
        self._literal.encode_special_tokens = True
        moved = [str(token) for number, token in added if self._id(str(token)) != number]
        if moved:
            raise SetupError(f"The tokenizer's ids of {', '.join(moved)} differ from its files.")
        layout = {name: self._id(text) for name, text in TOKEN_TEXTS.items()}
        known = {name: number for name, number in layout.items() if number is not None}
        lost = [TOKEN_TEXTS[name] for name in layout if name not in known]
        if lost:
            raise SetupError(f"The tokenizer does not know {', '.join(lost)}.")
        self.bad_ids = tuple(int(token) for token in raw.get("bad_token_ids", ()))
        self.ids = SpecialIds(**known)
        symbols = [self._id(symbol) for symbol in SPOKEN_FORBIDDEN]
        self.forbidden_symbols = tuple(
            sorted({self.ids.unk if number is None else number for number in symbols})
        )
        self.special_ids = frozenset(number for number, token in added if token.special)
        self.size = self.rules.get_vocab_size()

    def _id(self, token: str) -> int | None:
        return self.rules.token_to_id(token)

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        tokenizer = self._literal if literal else self.rules
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        return self.rules.decode(list(ids), skip_special_tokens=skip_special)


def _tokenizer(pairs: BPE, added: list[AddedToken]) -> tokenizers.Tokenizer:
    """Qwen2's tokenizer; `pairs` is shared, not copied."""
    made = tokenizers.Tokenizer(pairs)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_tokens(added)
    return made
