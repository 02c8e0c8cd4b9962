"""The fast parts of the model: which are in use, and why the others are not.

| part             | fast                                        | plain                          |
|------------------|---------------------------------------------|--------------------------------|
| `attention`      | our Triton kernel reads the slots in place  | PyTorch's attention            |
| `fused`          | our kernels between a layer's products      | PyTorch's operators            |
| `products`       | our kernel multiplies few rows              | PyTorch's products             |
| `caches`         | the kernel reads caches in 8 bits           | they are unpacked, or not used |
| `int4`           | PyTorch's 4-bit product, of few rows        | the matrix is unpacked first   |
| `int4_kernels`   | ours, of many rows, and with an 8-bit head  | the matrix is unpacked first   |
| `fp8`            | the same kernel reads e4m3                  | the matrix is unpacked first   |
| `flow_precision` | TF32 or bfloat16                            | float32                        |
| `graph_KIND`     | steps of this kind are captured graphs      | they are launched one by one   |

A part is built and compared with its plain form when the model is loaded; a part that raises or
computes a different result steps down to its plain form, and so does one that fails while it
serves. With `model.strict` it raises an error with the reason instead, as does a setting that names
something this machine lacks. After a failure of the card, such as an illegal access, stepping down
is impossible: the process ends, and our kernels are plain when it starts again. `/status`, the
metric `parley_fast_path`, `parley doctor --try` and the log show the states.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from parley import logs
from parley.engine.model import DeviceFault
from parley.errors import SetupError

log = logs.get(__name__)

State = Literal["fast", "plain", "refused"]

KERNELS: Final = (("attention", "fused", "products"), ("int4", "int4_kernels", "fp8"))
"""Groups of parts with kernels. It is not known afterwards which of them made a card fail: the fast
parts of the first group that has any are plain for `SUSPECT_S`."""

PARTS: Final = (*KERNELS[0], *KERNELS[1], "caches", "flow_precision")
"""All parts except the graphs, whose names are `GRAPH` followed by their kind of step."""

GRAPH: Final = "graph_"

SUSPECT_S: Final = 24 * 3600.0

REASON_LIMIT: Final = 300
"""Maximum characters of a reason: a compiler's output can be long."""


class FastPathFailed(Exception):
    """A fast part raised, or computed a different result than its plain form.

    Args:
        part: one of `PARTS`, or a graph.
        reason: one line.
    """

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PartState:
    """The state of a part; `reason` is empty only if it is fast."""

    state: State
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.reason}" if self.reason else self.state


class FastPaths:
    """The states of all parts of one model. Written by one thread at a time, read by any thread.

    Args:
        is_strict: raise an error instead of stepping down.
        faults: file that records the parts in use when the card failed, for the next process.
    """

    def __init__(self, *, is_strict: bool = False, faults: Path | None = None) -> None:
        self.is_strict = is_strict
        self._faults = faults
        self._suspects = {} if faults is None else _suspects(faults)
        self._states: Mapping[str, PartState] = {}

    def __repr__(self) -> str:
        return f"FastPaths({self.in_words()})"

    @property
    def states(self) -> Mapping[str, PartState]:
        """States by part. The mapping is never changed, but replaced by a new one."""
        return self._states

    def in_words(self) -> dict[str, str]:
        """`part: "fast"` or `part: "plain: why"`, for display."""
        return {part: str(state) for part, state in self._states.items()}

    def settle(self, part: str, state: State, reason: str = "") -> None:
        """Record the state of a part; log it if it is new."""
        new = PartState(state, one_line(reason))
        if self._states.get(part) == new:
            return
        self._states = {**self._states, part: new}
        log.info("fast_path_settled", part=part, state=state, reason=new.reason)

    def step_down(self, part: str, reason: str) -> None:
        """Record that a part failed: its plain form serves from now on.

        Raises:
            SetupError: stepping down is not allowed.
        """
        new = PartState("refused" if self.is_strict else "plain", one_line(reason))
        self._states = {**self._states, part: new}
        log.warning("fast_path_stepped_down", part=part, state=new.state, reason=new.reason)
        if self.is_strict:
            raise SetupError(
                f"The fast part '{part}' cannot be used, and model.strict forbids its plain form: "
                f"{new.reason}",
                hint="`parley doctor --try` checks every part. "
                "Set model.strict to false to serve without this one.",
            )

    def tried(self, part: str, trial: Callable[[], object]) -> bool:
        """Build and compare a part; True if it serves.

        Raises:
            SetupError: it failed, and stepping down is not allowed; or the card failed.
        """
        if part in self._suspects:
            self.step_down(part, self._suspects[part])
            return False
        try:
            with self.watched(part), guarded(part):
                trial()
        except DeviceFault as fault:
            raise SetupError(
                f"The card failed in the trial of the fast part '{part}': {fault}",
                hint="This part is plain at the next start. `parley doctor --try` checks all.",
            ) from fault
        except FastPathFailed as failure:
            self.step_down(part, failure.reason)
            return False
        except torch.OutOfMemoryError as error:
            self.step_down(part, described(error))
            return False
        self.settle(part, "fast")
        return True

    @contextmanager
    def watched(self, *parts: str) -> Iterator[None]:
        """If the card fails within the context, these parts, or our kernels if none are named, are
        plain in the next process.

        Raises:
            DeviceFault: the card failed.
        """
        try:
            yield
        except torch.AcceleratorError as error:
            groups = (self._fast_of(group) for group in KERNELS)
            self._suspect(parts or next(filter(None, groups), ()), one_line(str(error)))
            raise DeviceFault(str(error)) from error

    def _fast_of(self, parts: Sequence[str]) -> Sequence[str]:
        return [one for one in parts if one in self._states and self._states[one].state == "fast"]

    def _suspect(self, parts: Sequence[str], error: str) -> None:
        if self._faults is None:
            return
        reason = f"the card failed with it in the last day; delete {self._faults} to retry: {error}"
        found = {**self._suspects, **dict.fromkeys(parts, reason)}
        try:
            self._faults.parent.mkdir(parents=True, exist_ok=True)
            self._faults.write_text(json.dumps(found), encoding="utf-8")
        except OSError as problem:
            log.warning("card_fault_not_noted", file=str(self._faults), why=str(problem))


def _suspects(faults: Path) -> dict[str, str]:
    """Parts that the file names, with the reasons; empty if the file is older than `SUSPECT_S`."""
    try:
        is_new = time.time() - faults.stat().st_mtime < SUSPECT_S
        return dict(json.loads(faults.read_text(encoding="utf-8"))) if is_new else {}
    except (OSError, ValueError):
        return {}


def hold(part: str, found: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    """Compare the result of a part with that of its plain form, by the norm of their difference.

    Args:
        tolerance: largest relative distance that rounding explains.
        what: name of the results, for the error.

    Raises:
        FastPathFailed: they differ, or are not finite.
    """
    if found.is_meta:
        return
    found, wanted = found.detach().float(), wanted.detach().to(found.device).float()
    gap = float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))
    if not gap <= tolerance:
        raise FastPathFailed(part, f"{what} are {gap:.2g} off, at most {tolerance:g}")


@contextmanager
def guarded(part: str) -> Iterator[None]:
    """An exception within the context counts as the part's failure, unless the device failed or is
    out of memory.

    Raises:
        FastPathFailed: the body raised an exception.
    """
    try:
        yield
    except (FastPathFailed, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # A part that cannot even be built may raise anything: a compiler's exit code, a missing
        # header, too little shared memory, a folder that cannot be written.
        check_card()
        raise FastPathFailed(part, described(error)) from error


def check_card() -> None:
    """Called after an exception, which does not say whether the card has failed: Triton and cuBLAS
    report that as their own error, and CUDA reports what a kernel or a capture may not do as it
    does that. A card that has failed fails in every later call.

    Raises:
        torch.AcceleratorError: it has failed.
    """
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if is_used and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def described(error: BaseException) -> str:
    """An exception in one line: `CalledProcessError: Command '['gcc', ...`."""
    text = one_line(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(text: str) -> str:
    """A text without line breaks, cut to `REASON_LIMIT`."""
    words = " ".join(text.split())
    return words if len(words) <= REASON_LIMIT else words[: REASON_LIMIT - 3] + "..."
