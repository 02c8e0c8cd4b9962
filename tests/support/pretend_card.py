"""Tensors that report that they are on a card, and compute on the CPU.

What a card refuses, or waits for, is recorded: functions that mix its tensors with the host's,
reads of its values, and copies from the host that are not asynchronous. Modes of torch belong to a
thread, so every thread that computes must call `use_card`.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CARD = torch.device("cuda", 0)

READS = frozenset(
    {
        *("__bool__", "__float__", "__index__", "__int__", "allclose", "equal", "item"),
        *("masked_select", "nonzero", "numpy", "tolist", "unique"),
    }
)


class Watched:
    """Functions that mixed tensors of the card and of the host, those that waited for the card, and
    copies of any kind to the card, by the place that called them."""

    def __init__(self) -> None:
        self.mixed: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()


watched = Watched()


class OnCard(Tensor):
    """A tensor on the card; `content` is on the CPU."""

    content: Tensor

    @staticmethod
    def __new__(cls, content: Tensor) -> "OnCard":
        made = Tensor._make_wrapper_subclass(
            cls, content.shape, strides=content.stride(), storage_offset=content.storage_offset(),
            dtype=content.dtype, device=CARD,
        )  # fmt: skip
        assert isinstance(made, OnCard)
        made.content = content
        return made

    def record_stream(self, s: object) -> None:
        return

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise AssertionError(f"{func} was called without its tensors' contents")


class CardMode(TorchFunctionMode):
    """Functions that create tensors on the card."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


_modes = threading.local()


def use_card(device: torch.device = CARD) -> None:
    """In place of `device.use_device`: this thread may create tensors on the card."""
    if not hasattr(_modes, "entered"):
        _modes.entered = CardMode()
        _modes.entered.__enter__()


def leave_card() -> None:
    _modes.entered.__exit__(None, None, None)
    del _modes.entered


class Generator(torch.Generator):
    """A generator of the card, which is the CPU's."""

    def __new__(cls, device: object = None) -> "Generator":
        return super().__new__(cls)


def replace_cuda(patched: pytest.MonkeyPatch) -> None:
    """`torch.cuda` of a card whose streams do nothing."""
    patched.setattr(torch, "Generator", Generator)
    # A module that is moved gets new parameters; the content of its own stays on the host.
    future = torch.__future__
    patched.setattr(future, "_overwrite_module_params_on_conversion", True)
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None, device=CARD)
    for name in ("Stream", "current_stream", "default_stream"):
        patched.setattr(torch.cuda, name, lambda device=None: stream)
    patched.setattr(torch.cuda, "stream", lambda stream: nullcontext())


def _place() -> str:
    """Name of the module that called a function of torch."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        _, is_here, name = frame.f_code.co_filename.rpartition("/src/parley/models/minicpmo45/")
        if is_here:
            return name
    return "elsewhere"


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _tensors(one)


def _mapped(change: Callable[[Tensor], Tensor], given: Any) -> Any:
    """`given` with `change` of each tensor in it."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, dict):
        return {name: _mapped(change, one) for name, one in given.items()}
    if isinstance(given, list | tuple) and not isinstance(given, torch.Size):
        return type(given)(_mapped(change, one) for one in given)
    return given


def _called(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function of torch with the contents of its tensors."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = func.__self__.__name__
    tensors = list(_tensors((args, kwargs)))
    on_card = [one for one in tensors if isinstance(one, OnCard)]
    if name in ("device", "is_cuda") and on_card:
        return CARD if name == "device" else True
    if name == "pin_memory":
        return args[0]
    if name in ("to", "cpu") and (target := _target(name, args[1:], kwargs)) is not None:
        return _moved(args[0], args[1:], kwargs, target)
    if name in READS and on_card:
        watched.waits[f"{_place()}: {name}"] += 1
    is_made_there = bool(on_card)
    device = kwargs.get("device")
    if device is not None and func is not torch.device and name != "_parse_to":
        is_made_there = torch.device(device).type == "cuda"
    if not on_card and not is_made_there:
        return func(*args, **kwargs)
    if device is not None:
        kwargs = {**kwargs, "device": "cpu"}
        if is_made_there and name in ("tensor", "as_tensor"):
            watched.sent[f"{_place()}: {name}"] += 1
    host = any(not isinstance(one, OnCard) and one.dim() > 0 for one in tensors)
    if on_card and host:
        is_async = name == "copy_" and (kwargs.get("non_blocking") or True in args[2:])
        place = f"{_place()}: {name}"
        (watched.waits if name == "copy_" else watched.mixed)[place] += not is_async
        watched.sent[place] += name == "copy_"
    contents = _mapped(lambda one: one.content if isinstance(one, OnCard) else one, (args, kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        made = func(*contents[0], **contents[1])
    known = {id(one.content): one for one in on_card}

    def wrapped(one: Tensor) -> Tensor:
        found = known.get(id(one))
        return OnCard(one) if found is None else found

    return _mapped(wrapped, made) if is_made_there else made


def _target(name: str, rest: Any, kwargs: dict[str, Any]) -> torch.device | None:
    """Device to which a tensor is moved; None: only its type changes."""
    given = kwargs.get("device", rest[0] if rest else None)
    if name == "cpu":
        return torch.device("cpu")
    if isinstance(given, Tensor):
        return given.device
    return torch.device(given) if isinstance(given, str | torch.device) else None


def _moved(tensor: Tensor, rest: Any, kwargs: dict[str, Any], target: torch.device) -> Tensor:
    types = [one for one in (*rest, *kwargs.values()) if isinstance(one, torch.dtype)]
    types += [one.dtype for one in rest if isinstance(one, Tensor)]
    is_on_card, goes_there = isinstance(tensor, OnCard), target.type == "cuda"
    content = tensor.content if isinstance(tensor, OnCard) else tensor
    moves = is_on_card != goes_there
    with torch._C.DisableTorchFunctionSubclass():
        dtype = types[0] if types else content.dtype
        made = content.to(dtype, copy=moves or bool(kwargs.get("copy")))
    if moves and goes_there:
        watched.sent[f"{_place()}: {target}"] += 1
    if moves and not (goes_there and kwargs.get("non_blocking")):
        watched.waits[f"{_place()}: to the {'card' if goes_there else 'host'}"] += 1
    if not goes_there:
        return made
    return tensor if made is content and is_on_card else OnCard(made)
