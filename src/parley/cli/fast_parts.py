"""`parley doctor --try`: checks which fast parts work on this machine, without a checkpoint."""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import torch

from parley.cli.doctor import Finding, broken, fine, note
from parley.errors import SetupError
from parley.models.minicpmo45 import trials
from parley.models.minicpmo45.device import (
    DRIVER,
    choose_device,
    driver_version,
    use_device,
    visible_cards,
)
from parley.models.minicpmo45.load_choice import asked
from parley.models.minicpmo45.quantize import checked
from parley.models.minicpmo45.random_model import Sizes, full_sizes
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.fast_paths import check_card, described, one_line
from parley.settings import ModelSettings

LEAST_BYTES: Final = 1024**3
"""Memory that the trials need on the card."""


def try_parts(settings: ModelSettings) -> Iterator[Finding]:
    """Check driver, compiler, headers and card, then try every part."""
    yield from driver()
    yield from toolchain()
    try:
        device = choose_device(settings.device)
    except SetupError as error:
        yield broken("card", str(error), error.hint)
        return
    if device.type != "cuda":
        yield note("card", "no NVIDIA card is used: kernel, graphs, int4 and fp8 were not tried")
        return
    use_device(device)
    yield from _card(device)
    yield from _parts(settings, device)


def driver(place: Path = DRIVER) -> Iterator[Finding]:
    """Version of the NVIDIA driver, and of CUDA in torch."""
    cards = visible_cards(place, os.environ)
    if not cards and torch.version.cuda is None:
        yield note("driver", f"no NVIDIA card; torch {torch.__version__} has no CUDA")
        return
    version = driver_version(place)
    built = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    grade = fine if version else note
    yield grade("driver", f"{version or 'unknown'}; {built}")


def toolchain(environment: dict[str, str] | None = None) -> Iterator[Finding]:
    """Compiler, headers and cache folder, which Triton needs for the first use of a kernel."""
    environment = dict(os.environ) if environment is None else environment
    compiler = environment.get("CC") or shutil.which("gcc") or shutil.which("clang") or ""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    cache = Path(environment.get("TRITON_CACHE_DIR") or Path.home() / ".triton")
    place = cache
    while not place.exists():
        place = place.parent
    needs = (
        ("compiler", bool(compiler), compiler,
         "not found; Triton cannot build the launcher of its kernels",
         "Debian, Ubuntu: apt install gcc libc6-dev. Or set CC."),
        ("headers", header.is_file(), str(header), f"{header} is missing; Triton needs it",
         "Debian, Ubuntu: apt install python3-dev (of this Python's version)."),
        ("kernel cache", os.access(place, os.W_OK), str(cache), f"{cache} cannot be written",
         "Set TRITON_CACHE_DIR to a folder that can."),
    )  # fmt: skip
    for subject, is_there, found, problem, advice in needs:
        if is_there:
            yield fine(subject, found)
        else:
            yield note(subject, problem, advice)


def _card(device: torch.device) -> Iterator[Finding]:
    name = torch.cuda.get_device_name(device)
    major, minor = torch.cuda.get_device_capability(device)
    free, total = torch.cuda.mem_get_info(device)
    text = f"{name}, compute capability {major}.{minor}, {free / 2**30:.1f} of "
    text += f"{total / 2**30:.1f} GiB free"
    if free >= LEAST_BYTES:
        yield fine("card", text)
    else:
        yield broken("card", text, "These trials need 1 GiB.")


def _parts(settings: ModelSettings, device: torch.device) -> Iterator[Finding]:
    if slot_attention.is_installed():
        version = getattr(importlib.import_module("triton"), "__version__", "")
        yield fine("triton", version)
    for subject, instead, trial in tries(settings, full_sizes(), device):
        found = tried(subject, instead, trial)
        yield found
        if found.grade == "broken":
            yield note("other parts", "not tried, because the card has failed")
            return


def tries(
    settings: ModelSettings, sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> list[tuple[str, str, Callable[[], object]]]:
    """Names of the fast parts, their replacements if they fail ("": none), and their trials."""
    chosen = asked(settings, device, sizes.config, sizes.flow, dtype)
    kernel = partial(trials.attention, chosen)

    def fp8() -> None:
        checked("fp8", device=device, dtype=dtype)
        trials.fp8(device, dtype)

    return [
        # First: the kernel multiplies float32 numbers correctly.
        ("precision", "float32", partial(trials.precision, device, settings.token2wav_precision)),
        ("kernel", "PyTorch's attention", partial(kernel, has_small_caches=False)),
        ("kernel, 8 bits", "unpacked caches", partial(kernel, has_small_caches=True)),
        ("kernels between products", "PyTorch's operators",
         partial(trials.fused, chosen, has_small_caches=True)),
        ("products", "PyTorch's products", partial(trials.products, device, dtype)),
        ("graph", "steps launched one by one", partial(trials.graph, device)),
        ("stream", "", partial(trials.stream, device)),
        ("int4", "unpacked matrices", partial(trials.int4, device, dtype)),
        ("int4, our kernels", "matrices unpacked for prefills",
         partial(trials.int4_kernels, device, dtype)),
        ("fp8", "unpacked matrices", fp8),
    ]  # fmt: skip


def tried(subject: str, instead: str, trial: Callable[[], object]) -> Finding:
    """The result of one trial.

    Args:
        instead: its replacement if it fails; "": none.
    """
    try:
        trial()
    except SetupError as error:
        return note(subject, f"refused: {error}", error.hint)
    except Exception as error:
        try:
            check_card()
        except torch.AcceleratorError as failure:
            return broken(subject, f"the card failed: {one_line(str(failure))}")
        advice = f"Slower: {instead} will serve." if instead else "No voice can be made without it."
        return note(subject, described(error), advice)
    return fine(subject, "works; its results are those of its plain form")
