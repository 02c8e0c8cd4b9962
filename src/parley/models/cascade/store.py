"""The bundled files: tensors as int8 or four-bit rows in shards, and their companion files.

A folder of weights holds `cascade.json` (its format), `*.safetensors` (each under 50 MB) and
the text files of tokenizers and lexicon. A matrix `name` is stored as int8 rows with `name.scale`
(float16), or as `name.blocks` (four bits, 32 to a block, with scale and minimum) with the low-rank
`name.a`, `name.b` that fine-tuning added; vectors are float16. Rows of which few values are large
are compressed, as `name.zlib`.
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

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from parley.errors import SetupError
from parley.models import pocket_data
from parley.models.cascade.int8 import Int8Linear
from parley.models.cascade.llama import MATRICES, Llama, LlamaShape
from parley.models.cascade.recognition import Recogniser
from parley.models.cascade.whisper import Vocabulary, Whisper, WhisperShape

SHARD_BYTES = 48_000_000
ZLIB_SHARE = 0.75
"""Rows are compressed if they become smaller than this: an embedding to 0.7, others to 0.9."""
BLOCK = 32
LOADERS = 2
"""Number of threads that unpack stored matrices. Each computes on one core, whatever torch is set
to."""


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float matrices as int8 rows, the rest as float16."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.uint8 or tensor.ndim < 2 or tensor.shape[-1] == 1:
            packed[name] = (tensor if tensor.dtype == torch.uint8 else tensor.half()).contiguous()
            continue
        rows = tensor.float().flatten(1)
        scale = (rows.abs().amax(1) / 127).clamp(min=1e-7).half()
        values = (rows / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        packed[name + ".scale"] = scale
        squeezed = zlib.compress(values.numpy().tobytes(), 9)
        if tensor.ndim == 2 and len(squeezed) < ZLIB_SHARE * values.nbytes:
            packed[name + ".zlib"] = torch.frombuffer(bytearray(squeezed), dtype=torch.uint8)
        else:
            packed[name] = values.view(tensor.shape).contiguous()
    return packed


def write(folder: Path, name: str, packed: Mapping[str, Tensor]) -> list[Path]:
    """Write tensors as shards `NAME-1.safetensors` …, each under the limit."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in packed.items():
        if size + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][key] = tensor
        size += tensor.nbytes
    paths = []
    for number, shard in enumerate(shards, 1):
        path = folder / f"{name}-{number}.safetensors"
        save_file(shard, path)
        paths.append(path)
    return paths


def read(folder: Path, name: str) -> dict[str, Tensor]:
    """Float32 tensors of all shards at once.

    Raises:
        SetupError: the files are absent or broken.
    """
    return dict(each(folder, name))


def each(folder: Path, name: str) -> Iterator[tuple[str, Tensor]]:
    """Float32 tensors of all shards, one at a time; blocks of four bits are joined with what was
    learnt.

    Raises:
        SetupError: the files are absent or broken.
    """
    with opened(folder, name) as tensors:
        for key, make in tensors.items():
            yield key, make()


@contextlib.contextmanager
def opened(folder: Path, name: str) -> Iterator[dict[str, Callable[[], Tensor]]]:
    """As `each`: names, and what makes the tensor, in any thread.

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
        except Exception as error:  # safetensors raises a class of its own without a public name
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


def blocked(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """GGUF's rows of Q4_1 blocks, 20 bytes each, as blocks of 18: scale and minimum in one byte.

    Returns:
        The blocks (O, 18 I / 32), and per row what a scale's and a minimum's step is worth (O, 2).
    """
    raw = blocks.numpy().reshape(blocks.shape[0], -1, 20)
    head = raw[..., :4].copy().view(np.float16).astype(np.float32)
    scale_step = np.maximum(head[..., 0].max(1), 1e-8) / 255
    minimum_step = np.minimum(head[..., 1].min(1), -1e-8) / 255
    steps = np.stack((scale_step, minimum_step), 1).astype(np.float16)
    exact = steps.astype(np.float32)
    new = np.empty((*raw.shape[:2], 18), np.uint8)
    new[..., 0] = np.clip(np.round(head[..., 0] / exact[:, :1]), 0, 255)
    new[..., 1] = np.clip(np.round(head[..., 1] / exact[:, 1:]), 0, 255)
    new[..., 2:] = raw[..., 4:]
    return torch.from_numpy(new.reshape(blocks.shape[0], -1)), torch.from_numpy(steps)


def unblocked(blocks: Tensor, steps: Tensor) -> Tensor:
    """Blocks as `blocked` writes them to floats (O, I).

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
    """Vocabulary of a recogniser's folder, without quotation marks: no one says them, and what is
    short is often heard as one."""
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
    """The usual table of byte-level BPE: each byte as a visible character."""
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
    """Load a folder's language model as int8, without ever holding all of it as floats."""
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
