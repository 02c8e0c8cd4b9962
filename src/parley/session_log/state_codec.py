"""Encodes and decodes a session's state: plain values, samples, and values of parley.

Only dataclasses, structs and enums of `parley` are decoded, and none of their code runs: data of
another worker may contain wrong values, but cannot execute anything. Classes that appear in
recordings are identified by their tags (`entries.TAGS`), all others by module and name. Audio from
16-bit samples takes 16 bits per sample; silence and default values take no space. A recording is
JSON, with audio and bytes in separate files (`to_plain`, `from_plain`).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from parley.errors import InvalidPayload
from parley.media.pcm import Pcm
from parley.session_log.entries import TAGS

_TAG_OF: Final = {kind: tag for tag, kind in TAGS.items()}
_ARRAYS: Final = frozenset({"float32", "int16", "uint8", "int64", "float64"})
_PCM16: Final = "pcm16"
_DEPTH_LIMIT: Final = 64
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})
"""Types that are written unchanged, mostly without a function call each, because every unit is
logged."""
_ZEROS_LIMIT: Final = 1 << 26


KeepMedia = Callable[[Pcm | bytes], int | str]
"""Stores audio or bytes elsewhere; returns the key for `LoadMedia`."""
LoadMedia = Callable[[int | str], Pcm | bytes]


def encode(value: Any) -> bytes:
    """Encode a value; `decode` returns an equal one.

    Raises:
        TypeError: it contains something that is not a value.
    """
    return msgspec.msgpack.encode(to_plain(value))


def decode(data: bytes) -> Any:
    """The value.

    Raises:
        InvalidPayload: the bytes are invalid.
    """
    try:
        plain = msgspec.msgpack.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidPayload(f"The log of the session cannot be read: {error}") from None
    return from_plain(plain)


def parts(
    state: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The parts of a state, and the encoded parts that differ from `before`; a removed part is
    empty. Parts are plain values, two names deep (`runner.turns`). In a dictionary of audio, each
    piece (`runner.manual.7`) is a part; it is not converted, and compared by identity.

    Raises:
        TypeError: it contains an object of another type.
    """
    named: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, dict) and value:
            named |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            named[name] = value
    found: dict[str, Any] = {}
    for path, each in named.items():
        if isinstance(each, dict) and isinstance(next(iter(each.values()), None), Pcm):
            found |= {f"{path}.{key}": pcm for key, pcm in each.items()}
        else:
            found[path] = each if type(each) in _SCALARS else to_plain(each)
    changed = {
        path: msgspec.msgpack.encode(to_plain(each) if isinstance(each, Pcm) else each)
        for path, each in found.items()
        if path not in before or not (each is before[path] or each == before[path])
    }
    return found, changed | dict.fromkeys(before.keys() - found.keys(), b"")


def joined(encoded: Mapping[str, bytes]) -> dict[str, Any]:
    """The state that consists of these encoded parts. Empty ones are omitted.

    Raises:
        InvalidPayload: they cannot be read.
    """
    state: dict[str, Any] = {}
    for path, data in encoded.items():
        *names, last = path.split(".")
        if data:
            inside = state
            for name in names:
                inside = inside.setdefault(name, {})
            inside[last] = decode(data)
    return state


def from_plain(plain: Any, load: LoadMedia | None = None) -> Any:
    """The inverse of `to_plain`.

    Raises:
        InvalidPayload: it is none.
    """
    try:
        return _value(plain, 0, load)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidPayload(f"The log of the session cannot be read: {error}") from None


def to_plain(value: Any, keep: KeepMedia | None = None) -> Any:
    """The value as lists, dictionaries and scalars; without bytes if `keep` stores them.

    Raises:
        TypeError: it contains something that is not a value.
    """
    match value:
        case Pcm() | bytes() if keep is not None:
            return ["kept", keep(value)]
        case Enum():
            return ["enum", _name(type(value)), value.value]
        case None | bool() | int() | float() | str() | bytes():
            return value
        case np.ndarray():
            return _array(value)
        case list() | tuple() | deque():
            return [type(value).__name__, _all_plain(value, keep)]
        case set() | frozenset():
            return [type(value).__name__, [to_plain(each, keep) for each in sorted(value)]]
        case dict():
            pairs = zip(_all_plain(value, keep), _all_plain(value.values(), keep), strict=True)
            return ["dict", [list(pair) for pair in pairs]]
        case msgspec.UnsetType():
            return ["unset"]
        case msgspec.Struct():
            name = _name(type(value))
            fields = dict.fromkeys(value.__struct_fields__, dataclasses.MISSING)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name, fields = _shape(type(value))
        case _:
            raise TypeError(f"{type(value).__name__} is not a value")
    set_fields = {
        field: each
        for field, default in fields.items()
        if (each := getattr(value, field)) is not default
    }
    values = _all_plain(set_fields.values(), keep)
    return ["made", name, dict(zip(set_fields, values, strict=True))]


def _all_plain(values: Iterable[Any], keep: KeepMedia | None) -> list[Any]:
    return [
        each if type(each) in _SCALARS and (keep is None or type(each) is not bytes)
        else to_plain(each, keep)
        for each in values
    ]  # fmt: skip


@lru_cache
def _shape(kind: type) -> tuple[str, dict[str, Any]]:
    """Name and fields of a dataclass. Fields that are identical to their defaults are omitted."""
    return _name(kind), {each.name: each.default for each in dataclasses.fields(kind)}


def _array(value: np.ndarray[Any, Any]) -> list[Any]:
    data = np.ascontiguousarray(value)
    if data.size and data.dtype.name in _ARRAYS and not data.any():
        return ["zeros", data.dtype.name, list(data.shape)]
    if data.dtype == np.float32 and data.ndim == 1:
        scaled = data * np.float32(32768)
        whole = np.clip(np.nan_to_num(scaled), -32768, 32767).astype("<i2")
        if bool(np.all(whole == scaled)):
            return ["array", _PCM16, list(data.shape), whole.tobytes()]
    if data.dtype.name not in _ARRAYS:
        raise TypeError(f"an array of {data.dtype} is not a value")
    return ["array", data.dtype.name, list(data.shape), data.tobytes()]


@lru_cache
def _name(kind: type) -> str:
    return _TAG_OF.get(kind) or f"{kind.__module__}:{kind.__qualname__}"


def _value(plain: Any, depth: int, load: LoadMedia | None) -> Any:
    if not isinstance(plain, list):
        return plain
    if depth > _DEPTH_LIMIT:
        raise ValueError("too deep")
    kind, *rest = plain
    match kind:
        case "list" | "tuple" | "deque" | "set" | "frozenset":
            makers: dict[str, Any] = {
                "list": list, "tuple": tuple, "deque": deque, "set": set, "frozenset": frozenset
            }  # fmt: skip
            return makers[kind](_value(each, depth + 1, load) for each in rest[0])
        case "dict":
            pairs = ([_value(each, depth + 1, load) for each in pair] for pair in rest[0])
            return dict(pairs)
        case "kept" if load is not None:
            return load(rest[0])
        case "unset":
            return msgspec.UNSET
        case "array":
            return _samples(*rest)
        case "zeros":
            return _zeros(*rest)
        case "enum":
            found = _class(rest[0])
            if not issubclass(found, Enum):
                raise TypeError(f"{rest[0]} is not an enum")
            return found(rest[1])
        case "made":
            return _made(_class(rest[0]), rest[1], depth, load)
        case _:
            raise ValueError(f"{kind!r} is unknown")


def _samples(name: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    if name == _PCM16:
        return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
    if name not in _ARRAYS:
        raise ValueError(f"arrays of {name!r} are unknown")
    return np.frombuffer(data, name).reshape(shape).copy()


def _zeros(name: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if name not in _ARRAYS or math.prod(shape) > _ZEROS_LIMIT:
        raise ValueError(f"{shape} zeros of {name!r} are too many or unknown")
    return np.zeros(shape, name)


def _class(name: str) -> type:
    """The class with this tag, or with this module and name if it has no tag."""
    if (tagged := TAGS.get(name)) is not None:
        return tagged
    module, _, path = name.partition(":")
    found: Any = sys.modules[module] if module.startswith("parley.") else None
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"{name!r} is not a class of this package")
    return found


def _made(kind: type, fields: dict[str, Any], depth: int, load: LoadMedia | None) -> Any:
    values = {name: _value(each, depth + 1, load) for name, each in fields.items()}
    if issubclass(kind, msgspec.Struct):
        return kind(**values)
    if not dataclasses.is_dataclass(kind):
        raise ValueError(f"{kind.__name__} is not a value")
    _, known = _shape(kind)
    needed = {name for name, default in known.items() if default is dataclasses.MISSING}
    if not needed <= values.keys() <= known.keys():
        raise ValueError(f"{kind.__name__} has other fields")
    made = object.__new__(kind)
    for name, each in {**known, **values}.items():
        object.__setattr__(made, name, each)
    return made
