"""The training modules compute what the server's modules compute, from one checkpoint."""

from random import Random

import numpy as np
import pytest
import torch
from training.export import preprocessor_json
from training.nets import Pocket
from training.shape import Shape, config_json

from parley.models.minicpmo45 import audio, config, vision, weights
from parley.models.minicpmo45.caches import Span
from training import pictures, sight, sound

SHAPE = Shape(
    vocab=40, layers=2, mlp=96, ear_width=48, ear_layers=2, eye_width=48, eye_layers=2, eye_mlp=64,
    mouth_width=64, mouth_layers=2, mouth_mlp=96, codes=30,
)  # fmt: skip


@pytest.fixture(scope="module")
def both():
    torch.manual_seed(3)
    pocket = Pocket(SHAPE).eval().requires_grad_(False)
    for parameter in pocket.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
    made = config.make_config(
        config_json(SHAPE, audio_bos_id=5, text_eos_id=6), preprocessor_json(pocket)
    )
    network = weights.build(made)
    needed = weights.shapes_of(network)
    tensors = pocket.checkpoint()
    assert {n: tuple(t.shape) for n, t in tensors.items()} == needed
    weights.fill(network, tensors.items(), torch.device("cpu"))
    return pocket, network, made


def test_brains_agree(both):
    pocket, network, _ = both
    rows = torch.randn(1, 11, SHAPE.hidden)
    cache, rope = network.llm.make_cache(1, 32), network.llm.make_rope(32)

    theirs = network.llm(rows[0], [Span(0, 0, 11)], cache, rope)

    mine = pocket.llm.model(rows)[0]
    assert torch.allclose(mine, theirs, atol=2e-5)
    assert torch.allclose(pocket.llm.logits(mine), network.llm.logits(theirs), atol=1e-4)


def test_a_cached_brain_continues_as_one_pass(both):
    pocket, _, _ = both
    rows = torch.randn(1, 9, SHAPE.hidden)
    caches = pocket.llm.model.new_caches()

    parts = [pocket.llm.model(part, caches=caches) for part in rows.split([4, 3, 1, 1], 1)]

    assert torch.allclose(torch.cat(parts, 1), pocket.llm.model(rows), atol=1e-5)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_ears_agree(both, is_chunked):
    pocket, network, made = both
    wave = np.random.default_rng(0).standard_normal(16_000 * 3).astype(np.float32) * 0.1
    ears = audio.Ears(
        network.apm, network.audio_projection_layer, audio.MelExtractor(),
        pool_step=made.pool_step, chunk_frames=made.audio_chunk_frames,
    )  # fmt: skip

    theirs = ears.hear([wave], chunked=is_chunked)

    mel, frames = sound.log_mel([wave], is_floored=[True])
    states, real = pocket.ears.hear(
        mel[:, : int(frames[0])], frames, is_chunked=torch.tensor([is_chunked])
    )
    mine = pocket.ears.embed(states)[0, : int(real[0]) // 5]
    # The offline path pads with zeros where the training path reflects: the last frame differs.
    assert torch.allclose(mine[:-1], theirs[:-1], atol=2e-2 if not is_chunked else 1e-3)


def test_padding_does_not_change_what_is_heard(both):
    pocket, _, _ = both
    draw = np.random.default_rng(1)
    waves = [draw.standard_normal(n).astype(np.float32) for n in (16_000, 40_000)]
    mel, frames = sound.log_mel(waves, is_floored=[True, True])
    alone, count = sound.log_mel(waves[:1], is_floored=[True])

    together, real = pocket.ears.hear(mel, frames)

    single, _ = pocket.ears.hear(alone[:, : int(count[0])], count)
    length = int(real[0])
    # The last frame's convolution sees padding instead of the edge.
    assert torch.allclose(together[0, : length - 2], single[0, : length - 2], atol=1e-3)


@pytest.mark.parametrize("size", [(224, 224), (320, 240), (240, 320)])
def test_eyes_agree(both, size):
    pocket, network, made = both
    scene = pictures.make_scene(Random(2))
    pixels = pictures.draw(scene, Random(3), size=size)
    eyes = vision.Eyes(network.vpm, network.resampler, batch=4)

    theirs = eyes.look([vision.cut(pixels, None, made.slices)])[0]

    mine = pocket.eyes(sight.as_tensor(pixels)[None])
    assert theirs.shape == mine.shape
    assert torch.allclose(mine, theirs, atol=1e-4)


def test_mouths_agree(both):
    pocket, network, _ = both
    ids, states = [3, 7, 9], torch.randn(3, SHAPE.hidden)

    theirs = network.tts.condition(ids, states)

    mine = pocket.tts.condition(torch.tensor(ids), states)
    assert torch.allclose(mine, theirs, atol=1e-5)
    hidden = torch.randn(2, SHAPE.mouth_width)
    assert torch.allclose(
        pocket.tts.head_code[0](hidden), network.tts.head_code[0](hidden), atol=1e-5
    )


def test_gradients_of_the_fast_norm_are_those_of_the_plain_one():
    from training.nets import RmsNorm

    norm = RmsNorm(8)
    norm.weight.data = torch.rand(8)
    x = torch.randn(2, 3, 8, requires_grad=True)
    aim = torch.randn(2, 3, 8)
    plain = torch.nn.functional.rms_norm(x, (8,), norm.weight, 1e-6)

    mine = torch.autograd.grad((norm(x) * aim).sum(), [x, norm.weight])

    theirs = torch.autograd.grad((plain * aim).sum(), [x, norm.weight])
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
