import json

import pytest
import torch
from torch import nn
from training.trainer import Phase, Run, batches, run_phase


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Every reading of the clock is half a second later: a step takes half a second."""
    now = iter(range(10**9))
    monkeypatch.setattr("time.process_time", lambda: next(now) / 2)


def make_phase(minutes=1.0):
    torch.manual_seed(0)
    part = nn.Linear(4, 1)

    def make(index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, 4, generator=generator)
        return {"x": x, "y": x.sum(1, keepdim=True), "note": index}

    def losses(batch):
        off = (part(batch["x"]) - batch["y"]).square().mean()
        return {"total": off, "half": off / 2}

    return Phase("toy", {"part": part}, make, losses, minutes, rate=0.2, weight_decay=0.0)


def test_training_lowers_the_loss_and_leaves_log_and_part(tmp_path):
    phase = make_phase()

    averages = run_phase(Run(tmp_path), phase)

    lines = [json.loads(line) for line in (tmp_path / "toy.jsonl").read_text().splitlines()]
    assert averages["total"] < 0.5 * lines[0]["total"]
    assert (tmp_path / "parts" / "part.pt").is_file()
    assert lines[-1]["step"] <= 120


def test_a_run_in_slices_ends_with_the_weights_of_one_run(tmp_path):
    whole = make_phase()
    run_phase(Run(tmp_path / "whole"), whole)

    for _ in range(3):
        sliced = make_phase()
        run_phase(Run(tmp_path / "sliced", slice_minutes=0.4), sliced)

    assert torch.equal(whole.parts["part"].weight, sliced.parts["part"].weight)


def test_a_finished_phase_is_not_run_again(tmp_path):
    run_phase(Run(tmp_path), make_phase(0.2))
    before = (tmp_path / "toy.jsonl").read_text()

    assert run_phase(Run(tmp_path), make_phase(0.2)) == {}
    assert (tmp_path / "toy.jsonl").read_text() == before


def test_frozen_parts_are_neither_trained_nor_written(tmp_path):
    phase = make_phase(0.1)
    other = nn.Linear(2, 2)
    phase.parts = {**phase.parts, "other": other}
    phase.frozen = ("other",)
    kept = other.weight.clone()

    run_phase(Run(tmp_path), phase)

    assert torch.equal(other.weight, kept)
    assert not (tmp_path / "parts" / "other.pt").exists()


def test_an_interrupted_step_keeps_what_was_learnt(tmp_path):
    phase = make_phase()
    plain = phase.losses
    count = 0

    def losses(batch):
        nonlocal count
        count += 1
        if count == 20:
            raise KeyboardInterrupt
        return plain(batch)

    phase.losses = losses
    with pytest.raises(KeyboardInterrupt):
        run_phase(Run(tmp_path), phase)

    state = torch.load(tmp_path / "toy.pt", weights_only=True)
    assert state["step"] == 19


def test_batches_begin_at_their_number():
    stream = batches(lambda index: {"note": index}, 7, 0)

    assert [next(stream)["note"] for _ in range(3)] == [7, 8, 9]


@pytest.mark.slow
def test_batches_made_ahead_come_in_order():
    stream = batches(make_phase().make, 3, 2)

    assert [next(stream)["note"] for _ in range(5)] == [3, 4, 5, 6, 7]


def test_processes_make_whole_blocks_and_a_stopped_run_goes_on_inside_one():
    made = batches(lambda index: {"index": index}, 5, 2, block=3)

    assert [next(made)["index"] for _ in range(8)] == list(range(5, 13))
