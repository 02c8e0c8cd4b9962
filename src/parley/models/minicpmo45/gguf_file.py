"""A language model in a GGUF file: which tensors there are, and what they hold.

Layout (version 3; 2 is the same for what is read here), little endian: `GGUF`, version, number of
tensors, number of facts; the facts (name, type, value); of each tensor its name, sizes (innermost
first), type and offset; then, aligned, the data. Source: ggml, docs/gguf.md.

The file comes from strangers: counts and lengths are held against the file's size before anything
is read by them.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from parley.errors import SetupError
from parley.models.minicpmo45.gguf_blocks import FORMATS, BlockFormat
from parley.models.minicpmo45.quantize import Groups

ARCHITECTURE: Final = "qwen3"

_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _LIST = 8, 9
_MOST_ITEMS: Final = 1_000_000

_ONE: Final = {
    "token_embd.weight": "llm.model.embed_tokens.weight",
    "output.weight": "llm.lm_head.weight",
    "output_norm.weight": "llm.model.norm.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies. `shape`: outermost first, as torch counts."""

    shape: tuple[int, ...]
    format: BlockFormat
    start: int
    nbytes: int


def checkpoint_name(name: str) -> str | None:
    """A tensor's name in the published checkpoint; None: nobody needs it."""
    if name in _ONE:
        return _ONE[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found is None or found[2] not in _LAYER:
        return None
    return f"llm.model.layers.{int(found[1])}.{_LAYER[found[2]]}.weight"


class GgufFile:
    """The language model's tensors by their names in the published checkpoint.

    Raises:
        SetupError: it is no GGUF file, is cut off, holds another kind of model, or a tensor in a
            format that is not read here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise SetupError(f"{path} cannot be read: {error}") from error
        self._at = 0
        self.tensors: Mapping[str, GgufTensor] = self._read_head()

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor as numbers."""
        one = self.tensors[name]
        return one.format.numbers(self._bytes(one)).view(one.shape).to(dtype)

    def groups(self, name: str) -> Groups | None:
        """A matrix that is stored in 4 bits, its numbers as they are; None: it is not."""
        one = self.tensors[name]
        if one.format.groups is None or len(one.shape) != 2:
            return None
        q, scales, zeros = one.format.groups(self._bytes(one))
        rows = one.shape[0]
        return Groups(q.view(one.shape), scales.view(rows, -1), zeros.view(rows, -1))

    def _bytes(self, one: GgufTensor) -> Tensor:
        """Its blocks, uint8, shape (blocks, bytes of one)."""
        # A copy: torch takes only memory that may be written.
        data = bytearray(self._data[one.start : one.start + one.nbytes])
        return torch.frombuffer(data, dtype=torch.uint8).view(-1, one.format.nbytes)

    # The head.

    def _read_head(self) -> dict[str, GgufTensor]:
        if self._data[:4] != b"GGUF":
            raise SetupError(f"{self.path} is no GGUF file.")
        self._at = 4
        version = self._take("I")
        if version not in (2, 3):
            raise SetupError(f"{self.path} is GGUF of version {version}; 2 and 3 are read here.")
        tensors, facts = self._count("Q"), self._count("Q")
        alignment, architecture = 32, ""
        for _ in range(facts):
            name = self._text()
            value = self._value(self._take("I"))
            if name == "general.alignment":
                alignment = int(value)
            elif name == "general.architecture":
                architecture = str(value)
        if architecture != ARCHITECTURE:
            raise SetupError(
                f"{self.path} holds a model of the kind '{architecture}', not '{ARCHITECTURE}'.",
                hint="The language model's file of openbmb/MiniCPM-o-4_5-gguf is the one to name.",
            )
        if not 1 <= alignment <= 1 << 20:
            raise self._broken(f"an alignment of {alignment}")
        listed = [self._tensor() for _ in range(tensors)]
        begin = -(-self._at // alignment) * alignment
        return dict(self._placed(begin, *one) for one in listed if one[0])

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dimensions = self._take("I")
        if not 1 <= dimensions <= 4:
            raise self._broken(f"a tensor of {dimensions} dimensions")
        sizes = [self._take("Q") for _ in range(dimensions)]
        return checkpoint_name(name) or "", tuple(reversed(sizes)), self._take("I"), self._take("Q")

    def _placed(
        self, begin: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> tuple[str, GgufTensor]:
        stored = FORMATS.get(kind)
        if stored is None:
            known = ", ".join(one.name for one in FORMATS.values())
            raise SetupError(
                f"{self.path} stores {name} in format {kind} of ggml, which is not read here.",
                hint=f"Read are {known}.",
            )
        count = torch.Size(shape).numel()
        if shape[-1] % stored.block:
            raise self._broken(f"rows of {shape[-1]} numbers in blocks of {stored.block}")
        nbytes = count // stored.block * stored.nbytes
        if nbytes < 1 or begin + offset + nbytes > len(self._data):
            raise self._broken(f"{name} behind its end")
        return name, GgufTensor(shape, stored, begin + offset, nbytes)

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            inner, count = self._take("I"), self._count("Q")
            if inner in _SCALARS:
                self._skip(count * struct.calcsize("<" + _SCALARS[inner]))
            else:
                for _ in range(count):
                    # Lists of lists do not occur in models; their depth would be unbounded.
                    if inner != _TEXT:
                        raise self._broken(f"a list of type {inner}")
                    self._skip(self._take("Q"))
            return None
        if kind not in _SCALARS:
            raise self._broken(f"a fact of type {kind}")
        return self._take(_SCALARS[kind])

    def _take(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        begin = self._at
        self._skip(size)
        return struct.unpack_from("<" + code, self._data, begin)[0]

    def _count(self, code: str) -> int:
        count = int(self._take(code))
        if count > _MOST_ITEMS:
            raise self._broken(f"{count} entries")
        return count

    def _text(self) -> str:
        size = int(self._take("Q"))
        begin = self._at
        self._skip(size)
        return self._data[begin : self._at].decode("utf-8", "replace")

    def _skip(self, nbytes: int) -> None:
        if nbytes > len(self._data) - self._at:
            raise self._broken("something behind its end")
        self._at += nbytes

    def _broken(self, what: str) -> SetupError:
        return SetupError(
            f"{self.path} is broken: it names {what}.",
            hint="The download is probably incomplete; fetch the file again.",
        )
