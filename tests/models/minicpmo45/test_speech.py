"""The speech decoder: several conversations in one batch, blocks, turns, checkpoints and what they
forget, and keys and values in 8 bits."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.fake_capture import FakeCapture, InPlace
from tests.support.states import passes_of
from tests.support.tiny_decoder import RAW, finish, make, random_weights, rows_of, speak_units

from parley.errors import SetupError
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.stages import speak
from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock
from parley.models.minicpmo45.tts.sampling import SpeechSampling
from parley.models.minicpmo45.tts.turns import SpokenTurn, SpokenUnits, whole_utterance


def test_several_tokens_per_step_are_the_tokens_of_single_steps() -> None:
    spoken = []
    for tokens in (1, 5, 26, 100):
        tts = make()
        row = tts.open(0, seed=4)
        block = whole_utterance(tts, row, rows_of(tts, 1, 4), min_new=0, max_new=120)
        spoken.append((finish(tts, block, tokens), block.ended, tts.rows[0].position))

    assert len(spoken[0][0]) > 5
    assert spoken[1:] == [spoken[0]] * 3


@pytest.mark.parametrize("sampling", [SpeechSampling(), SpeechSampling(temperature=0.0)])
def test_every_number_of_rows_that_filter_speaks_by_graphs(sampling: SpeechSampling) -> None:
    capture = FakeCapture()
    tts = make(slots=4)
    tts.attention = InPlace()
    tts.graphs = GraphRunner("cpu", capture)
    tts.capture()
    tts.graphs.seal()
    for count in (1, 2, 3, 4):
        before = capture.replays
        blocks = [
            SpokenTurn(tts, tts.open(row, seed=row), sampling).begin(
                rows_of(tts, row, 3), is_last=True
            )
            for row in range(count)
        ]

        tts.step(blocks, 5)

        assert capture.replays == before + 5, count


def test_middle_unit_has_exactly_25_tokens_and_the_cache_keeps_step() -> None:
    tts = make()
    row = tts.open(0, seed=1)
    speech = SpokenUnits(tts, row)
    first = speech.begin(rows_of(tts, 1, 3), ends_turn=False)
    finish(tts, first)
    speech.end(first)
    before = row.position

    middle = speech.begin(None, ends_turn=False)
    tokens = finish(tts, middle)
    speech.end(middle)

    assert middle.rule.min_new == 26
    assert len(tokens) == 25
    assert row.position == row.columns == before + 1 + 25
    assert tts.config.end_code not in tokens


def test_the_26_draws_of_a_middle_unit_are_five_steps_of_the_scheduler() -> None:
    tts = make()
    speech = SpokenUnits(tts, tts.open(0, seed=1))
    finish(tts, speech.begin(rows_of(tts, 1, 3), ends_turn=False))
    block = speech.begin(rows_of(tts, 2, 3), ends_turn=False)
    job: Any = SimpleNamespace(open_block=lambda: block, spoken=lambda: None)
    model: Any = SimpleNamespace(speech_output=SimpleNamespace(decoder=tts))

    drawn = []
    while not block.finished:
        speak(model, [job])
        drawn.append(block.sampled)

    assert drawn == [5, 10, 15, 20, 26]


def test_interrupted_turn_does_not_leak_into_the_next() -> None:
    tts = make()
    row = tts.open(0, seed=1)
    speech = SpokenUnits(tts, row)
    finish(tts, speech.begin(rows_of(tts, 1, 3), ends_turn=False))
    speech.interrupt()
    block = speech.begin(rows_of(tts, 2, 3), ends_turn=False)
    found = finish(tts, block)

    fresh = make()
    other = SpokenUnits(fresh, fresh.open(0, seed=1))
    fresh.rows[0].draws = row.draws - block.sampled
    wanted = finish(fresh, other.begin(rows_of(fresh, 2, 3), ends_turn=False))

    assert block.rule.min_new == 0
    assert found == wanted


def test_end_code_as_the_very_first_sample_is_a_block_without_tokens() -> None:
    gain = "head_code.0.parametrizations.weight.original0"
    ended = 0
    # Of two opposite directions of the end code, one wins by far at the first sample.
    for loudness in (1000.0, -1000.0):
        loud = random_weights()[gain].clone()
        loud[-1] = loudness
        tts = make({**random_weights(), gain: loud})
        speech = SpokenTurn(
            tts, tts.open(0, seed=0), SpeechSampling(temperature=0.0), block_limit=5
        )
        block = speech.begin(rows_of(tts, 1, 2), is_last=True)
        if finish(tts, block) == []:
            ended += 1
            assert speech.end(block) == []
    assert ended == 1


def test_window_keeps_the_newest_columns_only() -> None:
    tts = make(columns=200)
    row = tts.open(0, seed=2)
    speech = SpokenTurn(tts, row, attention="sliding_window", window=30, block_limit=40)

    for number in range(12):
        block = speech.begin(rows_of(tts, number, 10), is_last=False)
        finish(tts, block)
        speech.end(block)
        assert row.columns <= 30

    assert row.position > 200
    assert row.length <= tts.capacity


def test_turn_that_outgrows_the_cache_continues_from_its_last_block() -> None:
    tts = make(columns=160)
    row = tts.open(0, seed=2)
    speech = SpokenUnits(tts, row)
    longest = 0

    for unit in range(12):
        block = speech.begin(rows_of(tts, unit, 6), ends_turn=False)
        finish(tts, block)
        speech.end(block)
        longest = max(longest, len(block.condition))
        assert row.length <= tts.capacity
        assert unit == 0 or len(block.tokens) == 25

    # A restart feeds the previous unit (7 rows, 25 tokens) and the new 7 rows.
    assert longest == 7 + 25 + 7


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"attention_type": "telepathy"}, "attention_type 'telepathy'"),
        ({"projector_type": "linear"}, "projector_type 'linear'"),
        ({"num_vq": 4}, "num_vq 4"),
        ({"attention_type": "sliding_recompute", "window_size": 1}, "window_size"),
    ],
)
def test_configuration_we_cannot_follow_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SetupError, match=sentence):
        SpeechConfig.from_json({**RAW, **change})


@pytest.mark.parametrize(("dtype", "is_rounded"), [(torch.float32, False), (torch.bfloat16, True)])
def test_rotary_frequencies_are_rounded_with_the_weights(
    dtype: torch.dtype, is_rounded: bool
) -> None:
    tts = MiniCPMTTS(SpeechConfig.from_json(RAW))
    tts.load_state_dict(random_weights())
    tts.to(dtype)
    tts.rebuild_buffers()
    tts.allocate(1)

    exact = 1 / 10_000 ** (torch.arange(4) / 4)
    assert torch.equal(tts._frequencies, exact.bfloat16().float() if is_rounded else exact)
    block = whole_utterance(tts, tts.open(0, 1), rows_of(tts, 1, 3), min_new=3, max_new=4)
    assert len(finish(tts, block)) == 3


def test_absent_field_is_named() -> None:
    raw = {name: value for name, value in RAW.items() if name != "num_audio_tokens"}

    with pytest.raises(SetupError, match=r"tts_config .* required field `num_audio_tokens`"):
        SpeechConfig.from_json(raw)


def test_width_of_another_language_model_is_refused() -> None:
    with pytest.raises(SetupError, match="width 24"):
        SpeechConfig.from_json(RAW, llm_width=25)


def test_checkpoint_copies_nothing_while_the_turn_continues() -> None:
    tts = make(slots=2)
    row = tts.open(1, seed=1)
    speech = SpokenUnits(tts, row)
    finish(tts, speech.begin(rows_of(tts, 1, 3), ends_turn=False))
    checkpoint = tts.checkpoint(row)
    wanted = finish(tts, speech.begin(rows_of(tts, 2, 3), ends_turn=False))

    assert checkpoint.columns.copy is None
    tts.restore(row, checkpoint)
    found = finish(tts, speech.begin(rows_of(tts, 2, 3), ends_turn=False))

    assert found == wanted


def test_checkpoint_is_put_aside_when_the_next_turn_overwrites_it() -> None:
    tts = make()
    row = tts.open(0, seed=1)
    speech = SpokenUnits(tts, row)
    finish(tts, speech.begin(rows_of(tts, 1, 3), ends_turn=False))
    first = tts.checkpoint(row)
    wanted = finish(tts, speech.begin(rows_of(tts, 2, 3), ends_turn=False))
    second = tts.checkpoint(row)
    further = finish(tts, speech.begin(rows_of(tts, 3, 3), ends_turn=False))
    speech.interrupt()

    assert (first.columns.copy, second.columns.copy) == (None, None)
    finish(tts, speech.begin(rows_of(tts, 5, 8), ends_turn=False))

    assert first.columns.copy is not None
    for checkpoint, seed, tokens in ((first, 2, wanted), (second, 3, further), (first, 2, wanted)):
        tts.restore(row, checkpoint)
        assert finish(tts, speech.begin(rows_of(tts, seed, 3), ends_turn=False)) == tokens


def logits_of(tts: MiniCPMTTS) -> torch.Tensor:
    """Raw logits of the first token after a condition, which is read back from the cache."""
    block = SpeechBlock(
        tts.open(0, 1), rows_of(tts, 1, 9), BlockRule(0, 8, True, False, SpeechSampling())
    )
    with passes_of(tts, block.row) as seen:
        tts.step([block], 1)
    return seen[0].logits


def test_eight_bits_take_half_and_move_logits_little() -> None:
    exact, small = make(), make(is_eight_bit=True)

    wanted, found = logits_of(exact), logits_of(small)

    # Float32 is kept without: a quarter, and a scale of two bytes per eight numbers.
    assert small.cache.nbytes == exact.cache.nbytes * (8 + 2) // 32
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.02


def test_a_checkpoint_of_eight_bits_brings_back_what_was_stored() -> None:
    tts = make(is_eight_bit=True)
    row = tts.open(0, seed=4)
    first = speak_units(tts, row, 1, 1)
    row.length = 6
    checkpoint = tts.checkpoint(row)
    before = tts.cache.lift(0, 0, 6)

    tts.keep_ends(row, 1, 2)
    tts.restore(row, checkpoint)

    assert first
    after = tts.cache.lift(0, 0, 6)
    assert len(before.tensors) == len(after.tensors) == 4
    assert all(map(torch.equal, before.tensors, after.tensors))
