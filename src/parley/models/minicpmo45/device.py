"""The device that a setting names, or why it cannot be used.

A graphics card that torch cannot use is an error with the reason: a user with a card does not want
nine billion parameters on the CPU, and would notice it only after minutes of loading.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from parley import logs
from parley.errors import SetupError

DRIVER: Final = Path("/proc/driver/nvidia")
"""Folder in which the kernel module lists the cards, readable without CUDA."""

WSL_DRIVER: Final = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""File through which the Windows driver exposes its cards to Linux in WSL, which has no kernel
module."""

log = logs.get(__name__)


def choose_device(
    name: str, *, driver: Path = DRIVER, environment: Mapping[str, str] | None = None
) -> torch.device:
    """The device that a setting names; `auto` is the first GPU if there is one.

    Args:
        driver, environment: replaced in tests.

    Raises:
        SetupError: the device does not exist, or torch cannot use it.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return _checked(torch.device("cuda:0"))
        cards = visible_cards(driver, os.environ if environment is None else environment)
        if cards:
            raise SetupError(
                f"This machine has {_counted(cards)}, and torch cannot use it: "
                f"{why_no_cuda(driver)}",
                hint="Correct that, or set model.device to cpu to run on the CPU all the same.",
            )
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SetupError(
            f"'{name}' is not a device.", hint="Use auto, cpu, cuda or cuda:N."
        ) from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            reason = "" if count else f" {why_no_cuda(driver)}"
            raise SetupError(
                f"There is no device '{name}': {count} GPUs are usable here.{reason}",
                hint="Set model.device to auto or cpu, or check the driver.",
            )
        return _checked(torch.device("cuda", device.index or 0))
    if device.type != "cpu":
        raise SetupError(f"The device '{name}' is not supported.", hint="Use cpu or cuda.")
    return device


LEAST_CAPABILITY: Final = (8, 0)
"""Compute capability of the oldest cards that multiply bfloat16 (A100 and later)."""


def use_device(device: torch.device) -> None:
    """Make a card the current device of this thread. Every thread that computes must call it:
    Triton and CUDA's libraries launch on their thread's current device, which is initially card
    0."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; one on the host through pinned memory, because a copy from other
    memory waits for all previous work of the device."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _checked(device: torch.device) -> torch.device:
    """Check that the model can run on a device, and return it.

    Raises:
        SetupError: the card is not NVIDIA's, too old, or newer than this build of torch.
    """
    capability = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if torch.version.hip is not None:
        raise SetupError(
            f"{name} is not an NVIDIA card; this model does not support others.",
            hint="Set model.device to cpu, or serve the model with --model llamacpp-omni:URL.",
        )
    if capability < LEAST_CAPABILITY:
        raise SetupError(
            f"{name} has compute capability {capability[0]}.{capability[1]}; "
            "this model needs 8.0 or higher, because older cards cannot multiply bfloat16.",
            hint="Use an NVIDIA card of the Ampere generation or newer (A10, A100, RTX 30xx, "
            "L4, L40S, RTX 40xx, H100, …), or set model.device to cpu.",
        )
    built = torch.cuda.get_arch_list()
    if built and not any(_runs(one, capability) for one in built):
        raise SetupError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, and torch "
            f"{torch.__version__} has no code for it, only for {', '.join(built)}.",
            hint="Install torch built for a newer CUDA: RTX 50xx and B200 need 12.8 or newer.",
        )
    return device


def _runs(built: str, capability: tuple[int, int]) -> bool:
    """True if one of torch's code targets (sm_86, compute_120) runs on a card: machine code runs on
    its own generation, and the driver compiles the other kind for every newer card."""
    kind, _, number = built.rstrip("af").partition("_")
    major, minor = int(number[:-1]), int(number[-1])
    if kind == "compute":
        return (major, minor) <= capability
    return major == capability[0] and minor <= capability[1]


def set_precision(precision: Literal["float32", "tf32", "bfloat16"]) -> None:
    """Set the precision of float32 products and convolutions on a GPU for this process.

    In a bfloat16 model it affects only flow and vocoder, which compute in float32.
    """
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"


def visible_cards(
    driver: Path, environment: Mapping[str, str], wsl_driver: Path = WSL_DRIVER
) -> int:
    """Number of NVIDIA cards visible to this process, usable by torch or not; in WSL at most 1."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([one for one in chosen.split(",") if one.strip() not in ("", "-1")])
    try:
        return len(list((driver / "gpus").iterdir()))
    except OSError:
        return int(wsl_driver.exists())


def why_no_cuda(driver: Path = DRIVER) -> str:
    """One sentence with the reason why torch cannot use CUDA here."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    # torch reports the reason in a warning: "The NVIDIA driver on your system is too old ...".
    known = next((str(one.message) for one in said if "CUDA" in str(one.message)), "")
    reason = " ".join(known.split())[:300] or "its driver does not answer."
    version = driver_version(driver)
    named = f", the driver is {version}" if version else ""
    return f"torch is built for CUDA {torch.version.cuda}{named}; {reason}"


def driver_version(driver: Path = DRIVER) -> str:
    """Version of the kernel module; "" if it is not installed."""
    try:
        first = (driver / "version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return ""
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), "")


def _counted(cards: int) -> str:
    return "an NVIDIA card" if cards == 1 else f"{cards} NVIDIA cards"
