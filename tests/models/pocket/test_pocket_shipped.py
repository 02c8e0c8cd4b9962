"""The shipped weights, where there are any: a short report card and one conversation by voice."""

import json

import pytest
from tests.contracts.conversations import Cast, turn

from parley.engine.segments import Audio, Text
from parley.engine.work import Decoded, Opening, Reply, Sampling, Work
from parley.media.pcm import Pcm
from parley.models.pocket.loader import DATA, load_folder
from parley.models.pocket.quantized import WEIGHTS_FILE
from training import report, synth

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA / WEIGHTS_FILE).is_file(), reason="no pocket weights in this checkout"
    ),
    pytest.mark.skipif(
        not {"espeak", "flite"} <= set(synth.available_engines()),
        reason="the synthesisers are not installed (training/setup.sh)",
    ),
]
MARGIN = 0.15
"""What 50 cases may differ from the recorded figure by chance (two standard deviations)."""


@pytest.mark.timeout(300)
def test_a_short_report_card_is_as_good_as_the_recorded_one():
    recorded = {f["name"]: f["value"] for f in json.loads((DATA / "report.json").read_text())}

    for figure in report.understanding(DATA, cases=50, seed=20_261_120):
        wanted = recorded[figure.name]
        assert figure.value >= wanted - MARGIN, (figure.name, figure.value, wanted)


def test_the_package_stays_below_its_limit():
    assert sum(file.stat().st_size for file in DATA.iterdir()) <= 20e6


def test_a_greeting_by_voice_is_answered_in_words_and_sound():
    model = load_folder(DATA)
    said = synth.speak("my name is anna", synth.Voice("flite", "slt"))
    works: list[Work] = [
        Opening("half_duplex", seed=3),
        turn("system", Text("You are a helpful assistant.")),
        turn("user", Audio(Pcm(said.samples, 16_000), "turn"), is_closed=False),
        Reply(sampling=Sampling(is_greedy=True)),
    ]

    outcome = Cast(model).play(0, works)[-1]

    assert isinstance(outcome.result, Decoded)
    assert outcome.result.text == "Nice to meet you, Anna."
    assert sum(len(piece.pcm) for piece in outcome.pieces if piece.pcm is not None) > 24_000
