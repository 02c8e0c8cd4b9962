"""Speech tokens to mel: time grid, what trimming keeps, pieces and wholes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.support.tiny_voice import TINY_FLOW, tiny_token2wav, tiny_voice
from tests.support.whole_flow import whole_mel

from parley.errors import SetupError
from parley.models.minicpmo45.token2wav.conformer import RelativeAttention, distance_codes
from parley.models.minicpmo45.token2wav.estimator import Estimator
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_memory import (
    FlowMemory,
    FlowRow,
    Trim,
    kept_frames,
    kept_tokens,
)
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape, euler_grid


def test_time_grid_of_five_steps() -> None:
    starts, lengths = euler_grid(5)

    assert starts == pytest.approx([0, 0.0489, 0.1910, 0.4122, 0.6910], abs=1e-4)
    assert sum(lengths) == pytest.approx(1.0)


def symbols(prompt: int, calls: int, trim: Trim) -> tuple[list[str], list[str], list[str]]:
    """Names of what a row remembers after `calls` full windows: history, frames, tokens."""
    history = [f"p{i}" for i in range(prompt)]
    frames = list(history)
    tokens = [f"p{i}" for i in range(prompt // 2)]
    for call in range(calls):
        history = [f"s{50 * call + i}" for i in range(50)] + history
        frames += [f"s{50 * call + i}" for i in range(50)]
        tokens += [f"s{25 * call + i}" for i in range(25)]
        history = [history[i] for i in kept_frames(len(history), prompt)]
        tokens = [tokens[i] for i in kept_tokens(len(tokens), prompt, trim)]
        frames = [frames[i] for i in kept_frames(len(frames), prompt)]
    return history, frames, tokens


def test_what_a_long_turn_remembers_with_a_six_second_prompt() -> None:
    history, frames, tokens = symbols(300, 20, Trim.PUBLISHED)

    newest = {f"s{i}" for i in range(700, 1000)}
    assert set(history) == newest | {f"p{i}" for i in range(200, 300)}
    assert frames == [f"p{i}" for i in range(300)] + [f"s{i}" for i in range(900, 1000)]
    assert tokens == [f"p{i}" for i in range(150)] + [f"s{i}" for i in range(50)]


def test_short_prompt_keeps_an_odd_mix_of_tokens() -> None:
    # Two copies of the history in a row, cut as the frame rate is, and then the first half of it.
    def published(names: list[str]) -> list[str]:
        copies = names + names
        if len(copies) > 80 + 100:
            copies = copies[:80] + copies[-100:]
        return copies[: len(copies) // 2]

    wanted = [f"p{i}" for i in range(40)]
    for call in range(20):
        wanted = published(wanted + [f"s{25 * call + i}" for i in range(25)])

    _, frames, tokens = symbols(80, 20, Trim.PUBLISHED)

    assert tokens == wanted
    assert frames[:80] == [f"p{i}" for i in range(80)]


def test_even_trim_keeps_prompt_and_newest_at_both_rates() -> None:
    _, _, tokens = symbols(300, 20, Trim.EVEN)

    assert tokens == [f"p{i}" for i in range(150)] + [f"s{i}" for i in range(450, 500)]


def test_nothing_is_trimmed_up_to_prompt_and_a_hundred() -> None:
    assert len(kept_frames(400, 300)) == 400
    assert len(kept_frames(401, 300)) == 400
    assert len(kept_tokens(200, 300, Trim.PUBLISHED)) == 200


@pytest.fixture(scope="module")
def flow() -> Flow:
    torch.manual_seed(0)
    return Flow(TINY_FLOW).requires_grad_(False).eval()


def memory_of(flow: Flow, slots: int = 1, *, steps: int = 3) -> FlowMemory:
    memory = FlowMemory(flow, slots, steps=steps, places=256, columns=180)
    for slot in range(slots):
        generator = torch.Generator().manual_seed(slot)
        embedding = torch.randn(192, generator=generator)
        memory.rows[slot] = FlowRow(prompt=60, speaker=flow.speaker(embedding))
    return memory


def test_stream_of_one_last_piece_equals_the_whole(flow: Flow) -> None:
    memory = memory_of(flow)
    embedding = torch.randn(192, generator=torch.Generator().manual_seed(0))
    tokens = list(range(20))
    schedule = flow.schedule(3)

    streamed = flow.stream(memory, [0], [tokens], schedule, is_last=True)
    whole = whole_mel(flow, tokens, embedding, torch.zeros(0, 80), schedule)

    torch.testing.assert_close(streamed[0], whole, atol=1e-5, rtol=1e-5)


def test_rows_in_company_make_the_mel_they_make_alone(flow: Flow) -> None:
    random = np.random.default_rng(1)
    schedule = flow.schedule(3)
    # Rows 0 and 2 are not neighbours, and row 1 has a longer past when they meet.
    turns = [[random.integers(0, 6561, 28).tolist() for _ in range(4)] for _ in range(3)]
    alone = memory_of(flow, 3)
    wanted = [
        [flow.stream(alone, [slot], [w], schedule, is_last=False)[0] for w in windows]
        for slot, windows in enumerate(turns)
    ]
    memory = memory_of(flow, 3)
    found: list[list[torch.Tensor]] = [[], [], []]

    found[1].append(flow.stream(memory, [1], [turns[1][0]], schedule, is_last=False)[0])
    for step in range(4):
        slots = [0, 1, 2] if step < 3 else [2, 0]
        windows = [turns[slot][len(found[slot])] for slot in slots]
        made = flow.stream(memory, slots, windows, schedule, is_last=False)
        for slot, mel in zip(slots, made, strict=True):
            found[slot].append(mel)

    for mels, others in zip(found, wanted, strict=True):
        for mel, other in zip(mels, others, strict=True):
            torch.testing.assert_close(mel, other, atol=2e-5, rtol=1e-5)


def test_call_that_fails_may_be_repeated(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = flow.schedule(3)
    memory, twin = memory_of(flow), memory_of(flow)
    windows = [list(range(i, i + 28)) for i in range(2)]
    for each in (memory, twin):
        flow.stream(each, [0], [windows[0]], schedule, is_last=False)
    wanted = flow.stream(twin, [0], [windows[1]], schedule, is_last=False)

    calls = 0
    original = Estimator.forward

    def fail(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("injected")
        return original(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Estimator, "forward", fail)
        with pytest.raises(RuntimeError, match="injected"):
            flow.stream(memory, [0], [windows[1]], schedule, is_last=False)
    found = flow.stream(memory, [0], [windows[1]], schedule, is_last=False)

    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_copied_row_speaks_like_its_origin(flow: Flow) -> None:
    schedule = flow.schedule(3)
    origin = memory_of(flow)
    flow.stream(origin, [0], [list(range(28))], schedule, is_last=False)
    copy = memory_of(flow, 3)
    flow.stream(copy, [1], [list(range(50, 78))], schedule, is_last=False)

    copy.copy_from(1, origin)
    window = [list(range(100, 128))]
    found = flow.stream(copy, [1], window, schedule, is_last=False)
    wanted = flow.stream(origin, [0], window, schedule, is_last=False)

    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_history_grows_to_its_limit_and_stays_there(flow: Flow) -> None:
    memory = memory_of(flow)
    schedule = flow.schedule(3)
    seen = set()

    for call in range(12):
        flow.stream(memory, [0], [list(range(call, call + 28))], schedule, is_last=False)
        row = memory.rows[0]
        assert len(set(row.places.tolist())) == len(row.places)
        if call >= 4:
            seen.add((len(row.places), row.frames, row.tokens))

    assert seen == {(160, 160, 80)}


def test_long_distance_codes_are_made_for_the_call_alone(flow: Flow) -> None:
    attention = flow.encoder.encoders[0].self_attn
    assert isinstance(attention, RelativeAttention)

    far = attention.distances(1500, 1490)
    near = attention.distances(10, -5)

    codes = distance_codes(10, -5, TINY_FLOW.width, torch.device("cpu"))
    assert far.shape[-1] == 11
    torch.testing.assert_close(near, attention._project(codes))


def test_distance_code_knows_the_sign() -> None:
    codes = distance_codes(2, -2, 4, torch.device("cpu"))

    assert codes[0, 0].item() == pytest.approx(math.sin(2))
    assert codes[-1, 0].item() == pytest.approx(math.sin(-2))
    assert codes[2].tolist() == [0, 1, 0, 1]


def test_full_size_has_the_published_number_of_parameters() -> None:
    from parley.models.minicpmo45.token2wav.vocoder_files import FULL_FLOW

    with torch.device("meta"):
        network = Flow(FULL_FLOW)

    assert sum(p.numel() for p in network.parameters()) == 155_802_352


def test_sizes_are_read_off_the_tensors(flow: Flow) -> None:
    assert FlowShape.of(dict(flow.state_dict())) == TINY_FLOW


def test_weights_of_something_else_are_named() -> None:
    with pytest.raises(SetupError, match=r"lack input_embedding\.weight"):
        FlowShape.of({})


def test_prompt_moves_what_is_said() -> None:
    speech = tiny_token2wav(slots=2)
    for slot, seed in ((0, 0), (1, 1)):
        speech.begin(slot, speech.prime(tiny_voice(seed)))

    made = speech.flow.stream(
        speech.memory, [0, 1], [list(range(28))] * 2, speech.schedule, is_last=False
    )

    assert (made[0] - made[1]).abs().max() > 1e-3
