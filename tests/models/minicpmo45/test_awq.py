"""The layout of AWQ checkpoints, by vectors made by rule."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.small_minicpmo import CONFIG
from tests.support.tiny_checkpoint import write_small

from parley.errors import SetupError
from parley.models.minicpmo45 import checkpoint, weights
from parley.models.minicpmo45.awq import awq, scheme_of, unpacked
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.quantize import Int4Linear

STATED = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": ["vpm", "apm", "tts"],
}

IN, OUT, GROUP = 64, 32, 32


def rule(outputs: int, inputs: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (in, out), zeros and scales (in / group, out) of a matrix, by a rule."""
    i, o = np.meshgrid(np.arange(inputs), np.arange(outputs), indexing="ij")
    q = (7 * i + 3 * o + i * o) % 16
    j, o = np.meshgrid(np.arange(inputs // group), np.arange(outputs), indexing="ij")
    zeros = (5 * j + o) % 16
    scales = ((1 + (3 * j + 11 * o) % 29) / 512).astype(np.float16)
    return q, zeros, scales


def pack(numbers: np.ndarray) -> torch.Tensor:
    """Eight neighbouring outputs into 32 bits, as the published tool does, one by one."""
    rows, columns = numbers.shape
    out = np.zeros((rows, columns // 8), np.uint32)
    for column in range(columns // 8):
        for place, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            out[:, column] |= numbers[:, 8 * column + output].astype(np.uint32) << (4 * place)
    return torch.from_numpy(out.view(np.int32))


def stored(
    outputs: int = OUT, inputs: int = IN, group: int = GROUP
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, zeros, scales = rule(outputs, inputs, group)
    return pack(q), torch.from_numpy(scales), pack(zeros)


def by_hand(outputs: int = OUT, inputs: int = IN, group: int = GROUP) -> np.ndarray:
    """The matrix (out, in), number by number."""
    q, zeros, scales = rule(outputs, inputs, group)
    weight = np.empty((outputs, inputs), np.float32)
    for o in range(outputs):
        for i in range(inputs):
            j = i // group
            weight[o, i] = (q[i, o] - zeros[j, o]) * np.float32(scales[j, o])
    return weight


def test_numbers_come_out_in_order():
    q, _, _ = rule(OUT, IN, GROUP)

    assert np.array_equal(unpacked(pack(q)).numpy(), q)


def test_one_column_by_its_bits():
    # Outputs 0 to 7 are 0, 1, ... 7; the lowest four bits hold output 0, the next ones output 2.
    packed = torch.tensor([[0x75316420]], dtype=torch.int32)

    assert unpacked(packed).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


def test_groups_stand_for_the_weights_of_the_rule_bit_for_bit():
    groups = awq(GROUP).groups(stored())

    assert np.array_equal(groups.weight().numpy(), by_hand())
    x = torch.randn(3, IN, generator=torch.Generator().manual_seed(1))
    found = Int4Linear(groups, torch.float32)(x)
    assert torch.allclose(found, x @ torch.from_numpy(by_hand()).T, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small checkpoint in which the language model's matrices are packed."""
    folder = tmp_path_factory.mktemp("awq")
    write_small(folder, dtype=torch.bfloat16)
    index_file = folder / checkpoint.INDEX_FILE
    index = json.loads(index_file.read_text())
    for file in sorted(folder.glob("model-*")):
        tensors = {}
        for name, tensor in load_file(file).items():
            place = name.rpartition(".")[0]
            if name.startswith(checkpoint.LAYERS) and tensor.dim() == 2:
                outputs, inputs = tensor.shape
                triple = stored(outputs, inputs)
                del index["weight_map"][name]
                for suffix, one in zip(("qweight", "scales", "qzeros"), triple, strict=True):
                    tensors[f"{place}.{suffix}"] = one
                    index["weight_map"][f"{place}.{suffix}"] = file.name
            else:
                tensors[name] = tensor
        save_file(tensors, file, metadata={"format": "pt"})
    index_file.write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": STATED}))
    return folder


def test_a_checkpoint_in_awq_loads_and_its_layers_stay_in_four_bits(folder):
    config = make_config(json.loads((folder / "config.json").read_text()))
    scheme = scheme_of(config.raw)
    network = weights.load(weights.build(config), folder, dtype=torch.float32, scheme=scheme)

    layers: Any = network.llm.model.layers
    layer = layers[1].mlp.up_proj
    assert isinstance(layer, Int4Linear)
    x = torch.randn(2, CONFIG["hidden_size"], generator=torch.Generator().manual_seed(1))
    want = torch.from_numpy(by_hand(CONFIG["intermediate_size"], CONFIG["hidden_size"]))
    assert torch.allclose(layer(x), x @ want.T, atol=1e-4)


def test_an_awq_checkpoint_that_lacks_a_part_is_named_by_its_matrix(folder, tmp_path):
    network = weights.build(make_config(CONFIG))
    found = checkpoint.catalogue(folder)
    del found["llm.model.layers.0.mlp.up_proj.qzeros"]

    listed = checkpoint.unfolded(found, awq(GROUP))
    with pytest.raises(SetupError, match=r"1 missing: llm\.model\.layers\.0\.mlp\.up_proj\.weight"):
        checkpoint.account(weights.shapes_of(network), listed, weights.unused_names(network))


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "fp8"])
def test_other_packings_are_refused_with_what_to_use_instead(method):
    with pytest.raises(SetupError, match=f"packed by '{method}'") as caught:
        scheme_of({"quantization_config": {"quant_method": method}})

    assert "model.quantize=int4" in caught.value.hint


COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "strategy": "group",
                "group_size": GROUP,
                "symmetric": True,
                "actorder": None,
            },
        }
    },
    "ignore": ["lm_head"],
}


def compressed(*, has_zeros: bool) -> tuple[list[torch.Tensor], np.ndarray]:
    """The tensors of a matrix of W4A16, and the matrix, number by number."""
    q, zeros, scales = rule(OUT, IN, GROUP)
    packed = np.zeros((OUT, IN // 8), np.uint32)
    packed_zeros = np.zeros((OUT // 8, IN // GROUP), np.uint32)
    weight = np.empty((OUT, IN), np.float32)
    for o in range(OUT):
        for i in range(IN):
            packed[o, i // 8] |= np.uint32(q[i, o]) << np.uint32(4 * (i % 8))
            zero = zeros[i // GROUP, o] if has_zeros else 8
            weight[o, i] = (q[i, o] - zero) * np.float32(scales[i // GROUP, o])
        for j in range(IN // GROUP):
            packed_zeros[o // 8, j] |= np.uint32(zeros[j, o]) << np.uint32(4 * (o % 8))
    tensors = [packed.view(np.int32), scales.T.copy(), np.array([OUT, IN])]
    if has_zeros:
        tensors.append(packed_zeros.view(np.int32))
    return [torch.from_numpy(one) for one in tensors], weight


@pytest.mark.parametrize("has_zeros", [False, True])
def test_w4a16_of_compressed_tensors_is_read_as_it_is_stored(has_zeros):
    stated = json.loads(json.dumps(COMPRESSED))
    stated["config_groups"]["group_0"]["weights"]["symmetric"] = not has_zeros
    scheme = scheme_of({"quantization_config": stated})
    assert scheme is not None
    parts, weight = compressed(has_zeros=has_zeros)

    groups = scheme.groups(parts)

    assert len(parts) == len(scheme.suffixes)
    assert scheme.matrix(tuple(parts[0].shape)) == (OUT, IN)
    assert np.array_equal(groups.weight().numpy(), weight)
    x = torch.randn(3, IN, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(
        Int4Linear(groups, torch.float32)(x), x @ torch.from_numpy(weight).T, atol=1e-5
    )


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("weights", {"num_bits": 8}),
        ("weights", {"strategy": "channel"}),
        ("weights", {"actorder": "group"}),
        ("weights", {"group_size": -1}),
        ("group", {"input_activations": {"num_bits": 8}}),
        ("all", {"format": "marlin-24"}),
        ("all", {"config_groups": {}}),
    ],
)
def test_other_kinds_of_compressed_tensors_are_refused_immediately(place, change):
    stated = json.loads(json.dumps(COMPRESSED))
    group = stated["config_groups"]["group_0"]
    {"weights": group["weights"], "group": group, "all": stated}[place].update(change)

    with pytest.raises(SetupError, match=r"config\.json") as caught:
        scheme_of({"quantization_config": stated})

    assert "model.quantize=int4" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        *[{"bits": 8}, {"version": "gemv"}, {"zero_point": False}],
        *[{"group_size": size} for size in (-1, 0, 48, "128")],
    ],
)
def test_other_kinds_of_awq_are_refused(change):
    ((name, given),) = change.items()

    with pytest.raises(SetupError, match=f"config.json says {name} {given!r} of its"):
        scheme_of({"quantization_config": {**STATED, **change}})


def test_a_folder_of_gguf_files_is_told_what_to_use_instead(tmp_path):
    (tmp_path / "MiniCPM-o-4_5-Q4_K_M.gguf").write_bytes(b"GGUF")

    with pytest.raises(SetupError, match="GGUF") as caught:
        checkpoint.catalogue(tmp_path)

    assert "model.quantize=int4" in caught.value.hint
