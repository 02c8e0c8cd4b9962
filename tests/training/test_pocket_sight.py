from random import Random

import pytest
import torch
from training.nets import position_ids, position_table
from training.pictures import Scene, Thing

from parley.models.minicpmo45 import vision
from training import pictures, sight

SCENE = Scene("white", (Thing("star", "red", 0.17, 0.17, 0.12),))


@pytest.mark.parametrize("size", sight.SIZES)
def test_pictures_have_the_size_that_the_image_processor_gives(size):
    pixels = pictures.draw(SCENE, Random(1), size=size)

    tensor = sight.as_tensor(pixels)

    assert tuple(tensor.shape[1:]) == sight.target_size(*size)[::-1]
    assert abs(tensor.shape[1] * tensor.shape[2] - 112 * 112) < 3200


def test_labels_lie_where_the_thing_lies():
    colors, signs = sight.labels(SCENE, 8, 8)
    cells, _ = sight.cell_labels(SCENE, 4)

    assert colors[9] == 1 + sight.COLOR_NAMES.index("red")
    assert signs[63] == sight.NOTHING
    assert cells[0] > 0
    assert cells[1:].sum() == 0


@pytest.mark.parametrize("grid", [(8, 8), (7, 9), (9, 7), (6, 11)])
def test_position_ids_are_those_of_the_large_model(grid):
    rows, columns = grid

    ids = position_ids(rows, columns, 8)

    assert ids.tolist() == vision.patch_positions(rows, columns, 8).flatten().tolist()


def test_the_position_table_has_the_column_first():
    table = position_table(2, 3, 256)

    assert torch.allclose(table[0, 2, 0], torch.tensor(2.0).sin())
    assert torch.allclose(table[1, 0, 128], torch.tensor(1.0).sin())
