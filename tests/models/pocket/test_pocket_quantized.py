import pytest
import torch

from parley.errors import SetupError
from parley.models.pocket import quantized


def test_rows_come_back_within_half_a_step_of_their_largest_value(tmp_path):
    weight = torch.randn(20, 30) * torch.logspace(-3, 1, 20)[:, None]

    quantized.write(tmp_path, {"a.weight": weight})
    back = quantized.read_all(tmp_path)["a.weight"]

    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((back - weight).abs() <= 0.6 * step + 1e-7).all()


def test_vectors_and_listed_tables_keep_sixteen_bits(tmp_path):
    tensors = {"b.bias": torch.randn(7), "resampler.query": torch.randn(16, 8)}

    quantized.write(tmp_path, tensors)
    back = quantized.read_all(tmp_path)

    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor.half().float())


def test_a_matrix_takes_about_a_byte_per_value(tmp_path):
    size = quantized.write(tmp_path, {"c.weight": torch.randn(400, 500)})

    assert 200_000 < size < 203_000


def test_an_absent_or_broken_file_is_explained(tmp_path):
    with pytest.raises(SetupError, match="are not at"):
        quantized.read_all(tmp_path)
    (tmp_path / quantized.WEIGHTS_FILE).write_bytes(b"not safetensors")
    with pytest.raises(SetupError, match="not a readable"):
        quantized.read_all(tmp_path)
