"""What the speech decoder remembers: checkpoints, and keys and values in 8 bits."""

import torch
from tests.support.states import passes_of
from tests.support.tiny_decoder import finish, make, rows_of, speak_units

from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import BlockRule, SpeechBlock
from parley.models.minicpmo45.tts.sampling import SpeechSampling
from parley.models.minicpmo45.tts.turns import SpokenUnits


def test_checkpoint_copies_nothing_while_the_turn_continues() -> None:
    tts = make(slots=2)
    row = tts.open(1, seed=1)
    speech = SpokenUnits(tts, row)
    finish(tts, speech.begin(rows_of(tts, 1, 3), ends_turn=False))
    checkpoint = tts.checkpoint(row)
    wanted = finish(tts, speech.begin(rows_of(tts, 2, 3), ends_turn=False))

    assert checkpoint.copy is None
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

    assert (first.copy, second.copy) == (None, None)
    finish(tts, speech.begin(rows_of(tts, 5, 8), ends_turn=False))

    assert first.copy is not None
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
