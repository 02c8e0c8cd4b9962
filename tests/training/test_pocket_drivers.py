"""The mouth is trained on the sequences that the server's drivers feed.

A random mouth speaks through a driver, greedily. Laid out as a training sequence, the same codes
must be what the training module predicts, place by place.
"""

from typing import Any

import pytest
import torch
from training.layout import IGNORED
from training.nets import Mouth
from training.phases.mouth import Marks, Sequence
from training.shape import Shape, config_json

from parley.models.minicpmo45.speech import MiniCPMTTS
from parley.models.minicpmo45.speech_config import SpeechConfig
from parley.models.minicpmo45.speech_sampling import SpeechSampling
from parley.models.minicpmo45.speech_turns import SpokenTurn, SpokenUnits

SHAPE = Shape(vocab=60, hidden=128, mouth_width=32, mouth_layers=2, mouth_heads=2, mouth_mlp=48,
              codes=20)  # fmt: skip
MARKS = Marks(audio_bos=50, text_eos=51, turn_eos=52, end_code=20, silence=3)
GREEDY = SpeechSampling(is_greedy=True, repetition_penalty=1.0)


@pytest.fixture(scope="module")
def mouths():
    torch.manual_seed(11)
    mine: Any = Mouth(SHAPE).eval().requires_grad_(False)
    mine.projector_semantic.linear2.weight.zero_()
    mine.projector_semantic.linear2.bias.zero_()
    mine.head_code[0].parametrizations.weight.original0[MARKS.end_code] *= 0.2  # never ends early
    raw = config_json(SHAPE, audio_bos_id=50, text_eos_id=51)["tts_config"]
    theirs = MiniCPMTTS(SpeechConfig.from_json(raw))
    theirs.load_state_dict(mine.state_dict())
    theirs.rebuild_buffers()
    theirs.allocate(1)
    return mine, theirs


def predicted(mine, made: Sequence):
    """What the training module says at every labelled place, and the label there."""
    ids, kinds = torch.tensor(made.ids), torch.tensor(made.kinds)
    rows = torch.where(
        (kinds == 0)[:, None],
        mine.emb_text(ids.clamp(max=SHAPE.vocab - 1)),
        mine.emb_code[0](ids.clamp(max=SHAPE.codes)),
    )
    best = mine.head_code[0](mine.model(rows[None])[0]).argmax(-1).tolist()
    return [(b, label) for b, label in zip(best, made.labels, strict=True) if label != IGNORED]


def drive(theirs, block):
    while not block.finished:
        theirs.step([block], 5)


def condition(theirs, ids):
    return theirs.condition(ids, torch.randn(len(ids), SHAPE.hidden))


def test_units_are_trained_as_they_are_spoken(mouths):
    mine, theirs = mouths
    driver = SpokenUnits(theirs, theirs.open(0, seed=1), GREEDY)
    made = Sequence([], [], [])

    for text in ([4, 5, 6], [7, 8], [9]):
        block = driver.begin(condition(theirs, text), ends_turn=False)
        drive(theirs, block)
        made.rows([*text, MARKS.audio_bos])
        made.speak(driver.end(block), None)

    pairs = predicted(mine, made)
    assert len(pairs) == 75
    assert all(said == label for said, label in pairs)


def test_blocks_are_trained_as_they_are_spoken(mouths):
    mine, theirs = mouths
    driver = SpokenTurn(theirs, theirs.open(0, seed=1), GREEDY, block_limit=30)
    made = Sequence([], [], [])

    for text, is_last in ((list(range(10, 20)), False), ([21, 22], True)):
        block = driver.begin(condition(theirs, text), is_last=is_last)
        drive(theirs, block)
        made.rows([*text, *([MARKS.text_eos] if is_last else []), MARKS.audio_bos])
        made.speak(list(block.tokens), None)
        driver.end(block)
        if not block.ended:
            break  # past its limit the driver leaves a gap of one position

    pairs = predicted(mine, made)
    assert len(pairs) >= 29
    assert all(said == label for said, label in pairs)
