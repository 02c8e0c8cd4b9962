import pytest
import torch
from tests.support.pocket import random_checkpoint
from training.codebook import Codebook
from training.trainer import Run

from training import keep


def test_a_kept_run_goes_on_from_nearly_the_same_weights(tmp_path):
    random_checkpoint(tmp_path)
    old = Run(tmp_path / "run")
    old.save_part("ear_heads", torch.nn.Linear(8, 8))

    size = keep.keep(old, tmp_path / "kept")
    parts = keep.restore(tmp_path / "kept", Run(tmp_path / "new"))

    assert parts == ["ear_heads", "vocoder"]
    assert size < 2_000_000
    for part in parts:
        before = torch.load(tmp_path / "run" / "parts" / f"{part}.pt", weights_only=True)
        after = torch.load(tmp_path / "new" / "parts" / f"{part}.pt", weights_only=True)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.allclose(tensor, after[name], atol=0.03 * float(tensor.abs().max() + 1))


def test_a_kept_codebook_gives_the_same_codes(tmp_path):
    random_checkpoint(tmp_path)
    old = Codebook.load(tmp_path / "run" / "codebook.pt")

    keep.keep(Run(tmp_path / "run"), tmp_path / "kept")
    keep.restore(tmp_path / "kept", Run(tmp_path / "new"))

    new = Codebook.load(tmp_path / "new" / "codebook.pt")
    mel = torch.randn(400, 80).numpy() - 2
    same = [a == b for a, b in zip(old.encode(mel), new.encode(mel), strict=True)]
    assert new.silence == old.silence
    assert sum(same) >= 98


def test_a_run_is_not_overwritten(tmp_path):
    random_checkpoint(tmp_path)
    keep.keep(Run(tmp_path / "run"), tmp_path / "kept")

    with pytest.raises(FileExistsError, match="holds a run"):
        keep.restore(tmp_path / "kept", Run(tmp_path / "run"))
