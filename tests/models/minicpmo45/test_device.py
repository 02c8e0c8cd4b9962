"""Which device is taken, and what is said where a card cannot be used."""

import warnings
from pathlib import Path

import pytest
import torch

from parley.errors import SetupError
from parley.models.minicpmo45.device import choose_device, visible_cards


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def cards(folder: Path, count: int) -> Path:
    """What the kernel module shows of `count` cards."""
    for number in range(count):
        (folder / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)
    (folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n")
    return folder


@pytest.mark.parametrize(
    ("name", "count", "environment"),
    [("auto", 0, {}), ("auto", 1, {"CUDA_VISIBLE_DEVICES": ""}), ("cpu", 1, {})],
    ids=["no card", "hidden on purpose", "asked for next to a card"],
)
def test_the_cpu_is_taken(no_cuda, tmp_path, name, count, environment):
    driver = cards(tmp_path, count)

    assert choose_device(name, driver=driver, environment=environment).type == "cpu"


def test_a_card_of_windows_is_seen_in_wsl(tmp_path):
    library = tmp_path / "libcuda.so.1"
    assert visible_cards(tmp_path, {}, library) == 0

    library.touch()

    assert visible_cards(tmp_path, {}, library) == 1
    assert visible_cards(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}, library) == 0


def test_a_card_that_torch_was_not_built_for_is_refused_with_the_reason(
    no_cuda, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.version, "cuda", None)

    with pytest.raises(SetupError, match=r"an NVIDIA card, .* a build without CUDA") as caught:
        choose_device("auto", driver=cards(tmp_path, 1), environment={})

    assert "model.device to cpu" in caught.value.hint


def test_a_driver_that_is_too_old_is_named(tmp_path, monkeypatch):
    def unavailable() -> bool:
        warnings.warn(
            "CUDA initialization: The NVIDIA driver on your system is too old (found 12040).",
            stacklevel=1,
        )
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", unavailable)

    with (
        pytest.warns(UserWarning, match="too old"),
        pytest.raises(
            SetupError, match=r"2 NVIDIA cards.*13\.0, the driver is 550\.54\.15; .*too old"
        ),
    ):
        choose_device("auto", driver=cards(tmp_path, 2), environment={})


def test_a_named_card_that_is_absent_is_refused(no_cuda, tmp_path):
    with pytest.raises(SetupError, match=r"There is no device 'cuda:3': 0 GPUs are usable here"):
        choose_device("cuda:3", driver=tmp_path, environment={})


def test_a_card_that_cannot_multiply_bfloat16_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    capabilities = {0: (7, 5), 1: (8, 0)}
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capabilities[device.index]
    )

    for name in ("auto", "cuda", "cuda:0"):
        with pytest.raises(
            SetupError, match=r"Tesla T4 has compute capability 7\.5.*8\.0"
        ) as caught:
            choose_device(name)
        assert "model.device to cpu" in caught.value.hint
    assert choose_device("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize(
    ("capability", "built", "is_taken"),
    [
        ((12, 0), "sm_80 sm_86 sm_90", False),
        ((12, 0), "sm_80 sm_120", True),
        ((12, 1), "sm_80 sm_120", True),
        ((12, 0), "sm_80 compute_90", True),
        ((12, 0), "sm_80 sm_121", False),
        ((8, 9), "sm_80 sm_90a", True),
        ((10, 0), "sm_90a", False),
    ],
)
def test_a_card_newer_than_the_build_of_torch_is_refused_before_anything_is_tried(
    monkeypatch, capability, built, is_taken
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "RTX 5090")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)

    if is_taken:
        assert choose_device("auto") == torch.device("cuda", 0)
    else:
        with pytest.raises(SetupError, match=r"RTX 5090 has .* has no code for it, only for sm_"):
            choose_device("auto")


def test_an_amd_card_is_refused_by_name(monkeypatch):
    """To PyTorch's build for AMD, CUDA is available; its targets are named gfx942."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "AMD Instinct MI300X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    monkeypatch.setattr(torch.cuda, "get_arch_list", "gfx90a gfx942".split)

    with pytest.raises(SetupError, match="MI300X is not an NVIDIA card"):
        choose_device("auto")
