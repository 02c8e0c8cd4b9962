"""The bundled files: tensors as int8 or four-bit rows in shards, and their companion files.

A folder of weights holds `cascade.json` (its format), `*.safetensors` (each under 50 MB) and
the text files of tokenizers and lexicon. A matrix `name` is stored as int8 rows with `name.scale`
(float16), or as `name.blocks` (four bits, 32 to a block, with scale and minimum) with the low-rank
`name.a`, `name.b` that fine-tuning added; vectors are float16. Rows with few large values are
compressed, as `name.zlib`. `training/cascade/packing.py` writes such files.
"""

from __future__ import annotations

import contextlib
import functools
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

from parley.errors import SetupError
from parley.models import pocket_data
from parley.models.cascade.int8 import Int8Linear
from parley.models.cascade.llama import MATRICES, Llama, LlamaShape
from parley.models.cascade.recognition import Recogniser
from parley.models.cascade.whisper import Vocabulary, Whisper, WhisperShape

BLOCK = 32
LOADERS = 2
"""Number of threads that unpack stored matrices. Each uses one core, regardless of torch's
settings."""


def read(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of all shards as float32.

    Raises:
        SetupError: the files are absent or broken.
    """
    with opened(folder, name) as tensors:
        return {key: make() for key, make in tensors.items()}


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[dict[str, Callable[[], Tensor]]]:
    """Names of all shards' tensors, each with a function that returns it as float32 and can be
    called in any thread; four-bit blocks are merged with their fine-tuned low-rank part.

    Raises:
        SetupError: the files are absent or broken.
    """
    paths = sorted(folder.glob(f"{name}-*.safetensors"))
    if not paths:
        raise SetupError(
            f"The weights '{name}' are not in {folder}.",
            hint=pocket_data.WHERE,
        )
    with contextlib.ExitStack() as stack:
        stored: dict[str, Callable[[], Tensor]] = {}
        try:
            for path in paths:
                file = stack.enter_context(safe_open(path, framework="pt"))
                for key in file.keys():  # noqa: SIM118
                    stored[key] = functools.partial(file.get_tensor, key)
        except Exception as error:  # safetensors raises a class without a public name
            raise SetupError(f"The weights '{name}' in {folder} cannot be read: {error}") from error
        owners = {key.removesuffix(".blocks").removesuffix(".zlib") for key in stored}
        made: dict[str, Callable[[], Tensor]] = {}
        for key in stored:
            owner, _, part = key.rpartition(".")
            if (
                part in ("scale", "a", "b", "steps")
                and owner.removesuffix(".a").removesuffix(".b") in owners
            ):
                continue
            if part == "blocks":
                made[owner] = functools.partial(_joined, stored, owner)
            elif part == "zlib":
                made[owner] = functools.partial(_float, stored, owner)
            else:
                made[key] = functools.partial(_float, stored, key)
        yield made


def _joined(stored: Mapping[str, Callable[[], Tensor]], owner: str) -> Tensor:
    matrix = unblocked(stored[owner + ".blocks"](), stored[owner + ".steps"]())
    if owner + ".a" in stored:
        matrix += _float(stored, owner + ".b") @ _float(stored, owner + ".a")
    return matrix


def _float(stored: Mapping[str, Callable[[], Tensor]], key: str) -> Tensor:
    if key + ".scale" not in stored:
        return stored[key]().float()
    scale = stored[key + ".scale"]().float()
    if key + ".zlib" in stored:
        rows = zlib.decompress(stored[key + ".zlib"]().numpy().tobytes())
        tensor = torch.frombuffer(bytearray(rows), dtype=torch.int8).view(len(scale), -1)
    else:
        tensor = stored[key]()
    return tensor.float() * scale.view(-1, *[1] * (tensor.ndim - 1))


def unblocked(blocks: Tensor, steps: Tensor) -> Tensor:
    """Convert blocks (O, 18 I / 32), with steps (O, 2) for each row, to floats (O, I).

    The low halves of a block's 16 bytes are weights 0 to 15, the high halves 16 to 31.
    """
    raw = blocks.view(blocks.shape[0], -1, 18)
    worth = steps.float()[:, None, :]
    scale = raw[..., :1].float() * worth[..., :1]
    minimum = raw[..., 1:2].float() * worth[..., 1:]
    values = torch.empty(*raw.shape[:2], BLOCK)
    values[..., : BLOCK // 2] = raw[..., 2:] & 15
    values[..., BLOCK // 2 :] = raw[..., 2:] >> 4
    return values.mul_(scale).add_(minimum).view(blocks.shape[0], -1)


def load_recogniser(folder: Path, name: str = "asr") -> Recogniser:
    facts = json.loads((folder / f"{name}.json").read_text("utf-8"))
    shape = WhisperShape(facts["vocabulary"], facts["width"], facts["layers"], facts["heads"])
    with torch.device("meta"):
        network = Whisper(shape)
    network.load_state_dict(read(folder, name), assign=True)
    network.eval().requires_grad_(False)
    network.quantize()
    return Recogniser(network, vocabulary_of(facts))


def vocabulary_of(facts: Mapping[str, Any]) -> Vocabulary:
    """Vocabulary of a recogniser's folder, without quotation marks: they are never spoken, and
    short sounds are often recognised as one."""
    pieces = tuple(_bytes(piece) for piece in facts["pieces"])
    quotes = [token for token, piece in enumerate(pieces) if b'"' in piece]
    return Vocabulary(
        pieces=pieces,
        start=tuple(facts["start"]),
        end=facts["end"],
        silence=facts["silence"],
        banned=(*facts["banned"], *quotes),
        leading=tuple(facts["leading"]),
    )


def _byte_signs() -> dict[str, int]:
    """The standard table of byte-level BPE: each byte as a visible character."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in kept}
    others = [byte for byte in range(256) if byte not in kept]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_SIGNS = _byte_signs()


def _bytes(piece: str) -> bytes:
    return bytes(_SIGNS[sign] for sign in piece)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The language model's tokenizer, `tokenizer.json.xz`.

    Raises:
        SetupError: it is absent or broken.
    """
    path = folder / "tokenizer.json.xz"
    try:
        return Tokenizer.from_str(lzma.decompress(path.read_bytes()).decode("utf-8"))
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise SetupError(
            f"The tokenizer cannot be read: {error}", hint=pocket_data.WHERE
        ) from error


def load_llama(folder: Path, name: str = "llm") -> Llama:
    """Load a folder's language model as int8, without ever having all of it in memory as floats."""
    facts = json.loads((folder / f"{name}.json").read_text("utf-8"))
    with torch.device("meta"):
        model = Llama(LlamaShape(**facts))

    def fill(key: str, make: Callable[[], Tensor]) -> None:
        owner, _, part = key.rpartition(".")
        parent, _, own = owner.rpartition(".")
        if own in MATRICES:
            setattr(model.get_submodule(parent), own, Int8Linear.of(make()))
        else:
            setattr(model.get_submodule(owner), part, nn.Parameter(make(), requires_grad=False))

    with opened(folder, name) as tensors, ThreadPoolExecutor(LOADERS) as pool:
        for done in [pool.submit(fill, *one) for one in tensors.items()]:
            done.result()
    model.head = Int8Linear.of(model.embed.weight.detach())
    return model.eval()
