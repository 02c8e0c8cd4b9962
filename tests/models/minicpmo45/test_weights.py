"""Loading: everything accounted for, straight to its place, nothing left hollow."""

import json
import mmap
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import rule_weights
from tests.support.small_minicpmo import CONFIG
from tests.support.tiny_checkpoint import VECTORS, write_small

from parley.errors import SetupError
from parley.models.minicpmo45 import checkpoint, hub, weights
from parley.models.minicpmo45.config import full_size_config, make_config, read_config
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.model import ANSWER_RESERVE
from parley.models.minicpmo45.plan import plan_of
from parley.models.minicpmo45.runtime.caches import Span
from parley.settings import ModelSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("checkpoint")
    write_small(place)
    return place


@pytest.fixture
def copy(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def network(folder: Path, **options) -> weights.Network:
    return weights.load(weights.build(read_config(folder)), folder, **options)


def rewrite(folder: Path, change) -> None:
    """Change the tensors of the shard that holds the language head, index included."""
    index = json.loads((folder / checkpoint.INDEX_FILE).read_text())
    file = index["weight_map"]["llm.lm_head.weight"]
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file)
    kept = {name: f for name, f in index["weight_map"].items() if f != file}
    index["weight_map"] = {**kept, **dict.fromkeys(tensors, file)}
    (folder / checkpoint.INDEX_FILE).write_text(json.dumps(index))


def test_a_checkpoint_of_several_shards_becomes_the_network(folder):
    loaded = network(folder)

    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 3
    for name, parameter in loaded.named_parameters():
        if "head_code" in name:
            continue  # folded into one matrix after loading
        want = rule_weights.weight(name, parameter.shape)
        np.testing.assert_array_equal(parameter.numpy(), want, err_msg=name)
        assert not parameter.requires_grad


def test_a_checkpoint_keeps_its_dtype_unless_told_otherwise(tmp_path):
    write_small(tmp_path, dtype=torch.bfloat16)

    assert network(tmp_path).llm.dtype is torch.bfloat16
    assert network(tmp_path, dtype=torch.float32).llm.dtype is torch.float32


def test_missing_unexpected_and_misshapen_tensors_are_named_together(copy):
    spoiled = []

    def change(tensors):
        head = tensors.pop("llm.lm_head.weight")
        tensors["llm.lm_tail.weight"] = head
        first = next(name for name in tensors if name != "llm.lm_tail.weight")
        tensors[first] = torch.zeros(3, 3)
        spoiled.append(first)

    rewrite(copy, change)

    with pytest.raises(SetupError) as caught:
        network(copy)

    sentence = str(caught.value)
    assert "1 missing: llm.lm_head.weight" in sentence
    assert "1 unexpected: llm.lm_tail.weight" in sentence
    assert f"of wrong shape: {spoiled[0]} (needs" in sentence


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "broken"])
def test_a_shard_that_cannot_be_read_is_named(copy, is_lost):
    shard = sorted(copy.glob("model-*"))[1]
    start = shard.read_bytes()[:100]
    shard.unlink()
    if not is_lost:
        shard.write_bytes(start)

    with pytest.raises(SetupError, match=shard.name):
        network(copy)


def test_an_index_that_promises_too_much_is_noticed(copy):
    index = json.loads((copy / checkpoint.INDEX_FILE).read_text())
    index["weight_map"]["llm.more.weight"] = next(iter(index["weight_map"].values()))
    (copy / checkpoint.INDEX_FILE).write_text(json.dumps(index))

    with pytest.raises(SetupError, match=r"no shard holds: llm\.more\.weight"):
        network(copy)


@pytest.mark.parametrize(
    "name",
    [
        "llm.model.norm.weight",
        "llm.lm_head.weight",
        "vpm.post_layernorm.weight",
        "tts.emb_text.weight",
    ],
)
def test_a_tensor_of_another_precision_is_cast_to_that_of_the_language_model(tmp_path, name):
    write_small(tmp_path, dtype=torch.bfloat16)
    file = next(f for f in tmp_path.glob("model-*") if name in load_file(f))
    save_file(
        {key: one.float() if key == name else one for key, one in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )

    loaded = network(tmp_path)

    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    llm = loaded.llm
    with torch.inference_mode():
        states = llm(llm.embed([1, 2]), [Span(0, 0, 2)], llm.make_cache(1, 8), llm.make_rope(8))
        assert llm.logits(states).dtype is torch.bfloat16


def test_a_folder_without_weights_says_so(tmp_path):
    with pytest.raises(SetupError, match=r"neither model\.safetensors\.index\.json nor"):
        checkpoint.catalogue(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "a/b/c", "/no/such/folder"])
def test_what_is_neither_folder_nor_hub_id_is_refused(name):
    with pytest.raises(SetupError, match="neither a folder nor a hub id"):
        hub.locate(name)


def test_the_published_geometry_has_the_published_number_of_tensors():
    built = weights.build(msgspec.structs.replace(full_size_config(), init_tts=False))

    shapes = weights.shapes_of(built)

    # model.md 2.3: 1220 without the speech decoder, 9.024 billion numbers.
    assert len(shapes) == 1220
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == pytest.approx(
        9.024e9, rel=1e-3
    )


def test_the_tiny_models_names_and_numbers_are_those_of_the_vectors():
    listed = json.loads((VECTORS / "tensors.json").read_text())
    raw = json.loads((VECTORS / "config.json").read_text())
    built = weights.build(make_config(raw))
    shapes = weights.shapes_of(built)
    unread = {name for name in listed if name.startswith(weights.unused_names(built))}

    assert set(shapes) == set(listed) - unread
    for name in sorted(shapes)[::7]:
        assert list(shapes[name]) == listed[name]["shape"]
        values = rule_weights.weight(name, shapes[name])
        np.testing.assert_allclose(values.reshape(-1)[:3], listed[name]["first"], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "llama"}, "not a MiniCPM-o 4.5 checkpoint"),
        ({"version": "2.6"}, "not a MiniCPM-o 4.5 checkpoint"),
        ({"rope_theta": None}, "lacks rope_theta and"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary scaling 'yarn'"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"init_audio": False}, "init_audio"),
    ],
)
def test_a_configuration_that_this_model_cannot_follow_is_refused(change, sentence):
    with pytest.raises(SetupError, match=sentence):
        make_config({**CONFIG, **change})


def test_rope_theta_may_stand_where_transformers_5_keeps_it():
    raw = {key: value for key, value in CONFIG.items() if key != "rope_theta"}

    config = make_config({**raw, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})

    assert config.language.rope_theta == 5e5


def test_the_plan_counts_what_a_model_takes(folder):
    config = read_config(folder)

    settings = ModelSettings(context_tokens=2048)
    chosen = LoadChoice(settings, torch.device("cpu"), config, dtype=torch.float32)
    plan = plan_of(chosen, folder)

    # 2 (keys, values) * 2 layers * 2 heads * 16 numbers * 4 bytes
    assert plan.token_bytes == 512
    # One column more is padding's.
    audio = 2 * 1501 * 16 * 4
    assert plan.per_slot["context and sound"] == 512 * (2048 + ANSWER_RESERVE) + audio
    assert plan.weights_bytes == plan.loading_bytes == sum(plan.parts.values())


def test_random_weights_fill_every_tensor():
    built = weights.build(make_config(CONFIG))

    weights.randomise(built, device="cpu", dtype=torch.float32)

    assert all(torch.isfinite(parameter).all() for parameter in built.parameters())
    assert float(built.llm.lm_head.weight.std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for large pages")
def test_weights_on_a_cpu_lie_in_large_pages():
    with mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(bytes(40 << 20))
        try:
            memory.madvise(25)
        except OSError:
            pytest.skip("this kernel does not move memory into large pages")
    # Memory of its own: what the allocator hands out again may lie in large pages already.
    room = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.write(bytes(40 << 20))
    weight = torch.frombuffer(room, dtype=torch.float32, count=4096 * 2048).view(4096, 2048)

    def large_kib() -> int:
        """Of the mapping that holds the weight."""
        text = Path("/proc/self/smaps").read_text(encoding="ascii")
        for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.M)[1:]:
            begin, end = (int(one, 16) for one in part.split(maxsplit=1)[0].split("-"))
            if begin <= layer.weight.data_ptr() < end:
                return int(re.findall(r"^AnonHugePages: +(\d+)", part, re.M)[0])
        raise AssertionError

    layer, small = torch.nn.Linear(2048, 4096, bias=False), torch.nn.Linear(8, 8)
    layer.weight = torch.nn.Parameter(weight.normal_())
    network = torch.nn.Sequential(layer, small)
    wanted = weight.clone()

    weights.finished(network, torch.device("cpu"))

    # 32 MiB, of which both ends may lie in pages that are shared with others.
    assert large_kib() >= 30 * 1024
    assert torch.equal(layer.weight, wanted)


@pytest.mark.parametrize("kind", ["none", "fp8", "int8", "int4", "smallest"])
def test_networks_without_memory_need_no_compiler(monkeypatch, kind):
    """Its import takes longer than everything else of a model's start."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)

    network = weights.build(full_size_config())
    weights.pack_without_memory(network, kind)

    assert all(tensor.is_meta for tensor in network.parameters())
    assert weights.shapes_of(network)["tts.head_code.0.parametrizations.weight.original0"] == (
        6562,
        1,
    )
