"""Speech tokens to mel: time grid, what trimming keeps, pieces and wholes."""

from copy import deepcopy

import pytest
import torch
from tests.support.tiny_voice import TINY_FLOW

from parley.errors import SetupError
from parley.models.minicpmo45.runtime.layers import PackedLinear
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_memory import (
    FlowMemory,
    FlowRow,
    Trim,
    kept_frames,
    kept_tokens,
)
from parley.models.minicpmo45.token2wav.flow_shape import FlowShape


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


@pytest.fixture(scope="module")
def flow() -> Flow:
    torch.manual_seed(0)
    return Flow(TINY_FLOW).requires_grad_(False).eval()


def memory_of(flow: Flow, slots: int = 1, *, steps: int = 3) -> FlowMemory:
    memory = FlowMemory(flow, slots, steps=steps, places=256, columns=180)
    for slot in range(slots):
        generator = torch.Generator().manual_seed(slot)
        embedding = torch.randn(192, generator=generator)
        memory.rows[slot] = FlowRow(cut=(60,), speaker=flow.speaker(embedding))
    return memory


def test_a_packed_flow_says_the_same(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(network: Flow) -> torch.Tensor:
        tokens = list(range(28))
        step = network.advance(memory_of(network), [0], [tokens], schedule, is_last=False)
        return step.mel

    schedule = flow.schedule(3)
    monkeypatch.setattr(PackedLinear, "LEAST", 0)
    packed = deepcopy(flow)
    packed.pack()
    # Live answers and those that no client waits for share it.
    packed.pack()

    torch.testing.assert_close(said(packed), said(flow), atol=1e-5, rtol=1e-5)
    has_packed = any(isinstance(part, PackedLinear) for part in packed.modules())
    assert has_packed == torch.backends.mkldnn.is_available()


def test_history_grows_to_its_limit_and_stays_there(flow: Flow) -> None:
    memory = memory_of(flow)
    schedule = flow.schedule(3)
    seen = set()

    for call in range(12):
        tokens = list(range(call, call + 28))
        flow.advance(memory, [0], [tokens], schedule, is_last=False).commit()
        row = memory.rows[0]
        assert len(set(row.places.tolist())) == len(row.places)
        if call >= 4:
            seen.add((len(row.places), row.frames, row.tokens))

    assert seen == {(160, 160, 80)}


def test_full_size_has_the_published_number_of_parameters() -> None:
    from parley.models.minicpmo45.token2wav.vocoder_files import FULL_FLOW

    with torch.device("meta"):
        network = Flow(FULL_FLOW)

    assert sum(p.numel() for p in network.parameters()) == 155_802_352


def test_weights_of_something_else_are_named() -> None:
    with pytest.raises(SetupError, match=r"lack input_embedding\.weight"):
        FlowShape.of({})
