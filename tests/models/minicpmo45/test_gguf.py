"""GGUF files: written by the published package, read by ours."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support.small_minicpmo import CONFIG
from tests.support.tiny_checkpoint import write_small

from parley.errors import SetupError
from parley.models.minicpmo45 import checkpoint, weights
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.gguf_blocks import FORMATS
from parley.models.minicpmo45.gguf_file import GgufFile, checkpoint_name
from parley.models.minicpmo45.quantize import Int4Linear

gguf = pytest.importorskip("gguf", reason="the package gguf writes the files of these tests")

NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


def theirs(name: str) -> str:
    """A published name as llama.cpp writes it."""
    parts = name.split(".")
    leaf = NAMES[parts[-2]]
    return f"blk.{parts[3]}.{leaf}.weight" if "layers" in parts else f"{leaf}.weight"


def write(path: Path, tensors: dict[str, torch.Tensor], kind: str, architecture="qwen3") -> None:
    """A file as llama.cpp's converter makes it: norms in float32, matrices in a format."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "longer word", "\u00fc"])
    writer.add_array("tokenizer.ggml.token_type", [1, 2, 3])
    stored = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        data = tensor.float().numpy()
        if data.ndim == 1:
            writer.add_tensor(theirs(name), data)
        else:
            writer.add_tensor(theirs(name), gguf.quants.quantize(data, stored), raw_dtype=stored)
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    write_small(folder)
    return folder


def language(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return {name: tensor for name, tensor in found.items() if name.startswith("llm.")}


def without_language(folder: Path) -> None:
    """Remove the language model's tensors, and shards that hold nothing else."""
    import json

    index = json.loads((folder / checkpoint.INDEX_FILE).read_text())["weight_map"]
    needed = {file for name, file in index.items() if not name.startswith("llm.")}
    gone = [file for file in folder.glob("*.safetensors") if file.name not in needed]
    assert gone
    for file in gone:
        file.unlink()


@pytest.mark.parametrize("number", sorted(FORMATS))
def test_blocks_are_the_numbers_that_the_published_package_reads(number):
    """Random bytes: every field of every format takes part."""
    stored = FORMATS[number]
    raw = np.random.default_rng(number).integers(0, 256, (8, 16 * stored.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))

    found = stored.numbers(torch.from_numpy(raw).view(-1, stored.nbytes)).numpy()

    found = found.reshape(want.shape)
    numbers = np.isfinite(want)
    assert numbers.mean() > 0.5
    assert np.array_equal(numbers, np.isfinite(found))
    found, want = (np.where(numbers, one, 0).reshape(-1, stored.block) for one in (found, want))
    assert (np.abs(found - want).max(1) <= 1e-5 * np.abs(want).max(1)).all()
    assert gguf.GGMLQuantizationType(number).name == stored.name


@pytest.mark.parametrize("number", [n for n, one in FORMATS.items() if one.groups])
def test_four_bits_become_groups_without_rounding(number):
    stored = FORMATS[number]
    raw = np.random.default_rng(3).integers(0, 256, (64, stored.nbytes), dtype=np.uint8)
    raw[:, 1:4:2] = 0x2C  # scales that are ordinary numbers
    blocks = torch.from_numpy(raw)

    assert stored.groups is not None
    q, scales, zeros = stored.groups(blocks)

    wide = (q.view(-1, 32) - 8) * scales.reshape(-1, 1) + zeros.reshape(-1, 1)
    assert torch.equal(wide.view(64, -1), stored.numbers(blocks))
    assert int(q.min()) == 0
    assert int(q.max()) == 15


def test_a_model_whose_language_part_is_a_gguf_file_has_its_numbers(tmp_path, folder):
    tensors = language(folder)
    write(tmp_path / "llm.gguf", tensors, "F32")
    plain = weights.load(weights.build(make_config(CONFIG)), folder, dtype=torch.float32)
    without_language(folder)

    loaded = weights.load(
        weights.build(make_config(CONFIG)),
        folder,
        dtype=torch.float32,
        language=GgufFile(tmp_path / "llm.gguf"),
    )

    wanted = dict(plain.named_parameters())
    assert all(torch.equal(one, wanted[name]) for name, one in loaded.named_parameters())


def test_matrices_in_four_bits_stay_so(tmp_path, folder):
    write(tmp_path / "llm.gguf", language(folder), "Q4_0")
    file = GgufFile(tmp_path / "llm.gguf")

    loaded = weights.load(
        weights.build(make_config(CONFIG)), folder, dtype=torch.float32, quantize="int4",
        language=file,
    )  # fmt: skip

    layer = loaded.get_submodule("llm.model.layers.0.mlp.down_proj")
    assert isinstance(layer, Int4Linear)
    assert layer.group == 32
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    want = x @ file.read("llm.model.layers.0.mlp.down_proj.weight", torch.float32).T
    assert torch.allclose(layer(x), want, rtol=1e-4, atol=1e-4)
    embedding = loaded.llm.model.embed_tokens.weight
    assert torch.equal(embedding, file.read("llm.model.embed_tokens.weight", torch.float32))


def test_a_tensor_that_is_missing_is_named(tmp_path, folder):
    tensors = language(folder)
    tensors.pop("llm.model.layers.1.mlp.up_proj.weight")
    write(tmp_path / "llm.gguf", tensors, "F16")

    with pytest.raises(SetupError, match=r"1 missing: llm\.model\.layers\.1\.mlp\.up_proj"):
        weights.load(
            weights.build(make_config(CONFIG)), folder, language=GgufFile(tmp_path / "llm.gguf")
        )


def test_another_kind_of_model_is_refused(tmp_path, folder):
    write(tmp_path / "llm.gguf", language(folder), "F16", architecture="llama")

    with pytest.raises(SetupError, match="a model of the kind 'llama'"):
        GgufFile(tmp_path / "llm.gguf")


def test_names_of_strangers_are_nobodys():
    assert checkpoint_name("blk.12.attn_q_norm.weight") == (
        "llm.model.layers.12.self_attn.q_norm.weight"
    )
    assert checkpoint_name("blk.1.attn_q.bias") is None
    assert checkpoint_name("v.blk.0.attn_q.weight") is None


def test_a_file_that_is_cut_off_anywhere_is_refused_in_a_sentence(tmp_path, folder):
    whole = tmp_path / "llm.gguf"
    write(whole, language(folder), "Q8_0")
    data = whole.read_bytes()

    for size in (4, 11, 30, 90, 400, len(data) // 2):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(data[:size])
        with pytest.raises(SetupError, match=r"broken|kind"):
            GgufFile(cut)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"GGML" + bytes(40), "is no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "behind its end"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "kind ''"),
    ],
)
def test_counts_of_an_attacker_are_not_believed(tmp_path, data, said):
    path = tmp_path / "evil.gguf"
    path.write_bytes(data)

    with pytest.raises(SetupError, match=said):
        GgufFile(path)
