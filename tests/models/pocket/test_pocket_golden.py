"""The shipped weights still say what they said, whatever became of the engine."""

import json

import pytest
from tests.support import pocket_golden

from parley.models.pocket.loader import DATA, load_folder
from parley.models.pocket.quantized import WEIGHTS_FILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA / WEIGHTS_FILE).is_file(), reason="no pocket weights in this checkout"
    ),
]


@pytest.fixture(scope="module")
def golden():
    return json.loads(pocket_golden.FILE.read_text())


def test_the_file_belongs_to_the_shipped_weights(golden):
    assert golden["weights"] == pocket_golden.weights_id(), (
        "new weights: run python -m tests.support.pocket_golden"
    )


@pytest.mark.parametrize("name", ["chat", "half_duplex", "duplex"])
def test_tokens_and_words_are_those_of_the_file(golden, name):
    works = pocket_golden.conversations()[name]

    assert pocket_golden.play(load_folder(DATA), works) == golden["conversations"][name]
