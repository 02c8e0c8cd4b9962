"""What a session remembers crosses to another worker and back, and nothing else does."""

import typing
from collections import deque
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support import units

from parley.dialects.events import AudioInput, DuplexSetup, HalfDuplexSetup, Sound, UnitDone
from parley.errors import InvalidPayload, ParleyError
from parley.media.pcm import Pcm
from parley.protocol.kinds import Phase
from parley.protocol.values import TextPart
from parley.results import PrefillResult, Stage, UnitResult
from parley.session_log import entries, state_codec


def again(value: object) -> object:
    return state_codec.decode(state_codec.encode(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": (1, [2.5, "three", b"4"]), "phase": Phase.PAUSED, 5: deque([True, None])},
        DuplexSetup(prompt="Be kind.", voice=Sound(b"RIFF", 16_000)),
        HalfDuplexSetup(system=(TextPart("Hello"), Sound(b"x", 8_000)), idle_s=3.0),
        {"unset": msgspec.UNSET, "ids": frozenset({"b", "a"})},
    ],
)
def test_values_come_back_equal(value: object) -> None:
    assert again(value) == value
    assert type(again(value)) is type(value)


@pytest.mark.parametrize("scale", [1 / 32768, 0.1])
def test_sound_comes_back_bit_for_bit(scale: float) -> None:
    samples = (np.arange(-1000, 1000) * np.float32(scale)).astype(np.float32)

    heard = again(AudioInput(Pcm(samples, 16_000), (b"jpeg",), force_listen=True))

    assert isinstance(heard, AudioInput)
    assert heard.pcm.samples.tobytes() == samples.tobytes()
    assert (heard.frames, heard.force_listen) == ((b"jpeg",), True)


def test_sixteen_bits_take_sixteen_bits() -> None:
    exact = np.arange(-8000, 8000, dtype=np.float32) / np.float32(32768)
    assert len(state_codec.encode(exact)) < 2.1 * len(exact)


def test_shapes_are_kept() -> None:
    state = np.zeros((2, 1, 128), np.float32) + np.float32(0.3)
    restored = again((state, np.zeros(0, np.float32)))
    assert isinstance(restored, tuple)
    assert restored[0].shape == state.shape
    assert len(restored[1]) == 0


@dataclass(frozen=True)
class Foreign:
    """A value of another package."""


FIELD = {"name": "a", "encode_name": "a", "type": 1}


@pytest.mark.parametrize(
    "plain",
    [
        ["made", f"{__name__}:Foreign", {}],
        # Only imported by this package.
        ["made", "parley.results:Foreign", {}],
        ["made", "parley.session_log.state_codec:msgspec.structs.FieldInfo", FIELD],
        ["made", "subprocess:Popen", {}],
        ["made", "parley.worker.host:Host", {}],
        ["made", "parley.session_log.state_codec:np.random.Generator", {}],
        ["made", "parley.dialects.events.client:DuplexSetup", {"prompt": "x"}],
        ["enum", "parley.dialects.events.client:DuplexSetup", 1],
        ["array", "object", [1], b"12345678"],
        ["unheard of"],
        [["list"], []],
    ],
)
def test_nothing_else_is_made(plain: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.results.Foreign", Foreign, raising=False)
    with pytest.raises(InvalidPayload):
        state_codec.decode(msgspec.msgpack.encode(plain))


def test_what_would_take_much_memory_or_depth_is_refused() -> None:
    deep: object = 1
    for _ in range(200):
        deep = ["list", [deep]]

    for plain in (deep, ["zeros", "float32", [1 << 15, 1 << 15]]):
        with pytest.raises(InvalidPayload):
            state_codec.decode(msgspec.msgpack.encode(plain))


def test_damaged_bytes_are_refused() -> None:
    whole = state_codec.encode({"a": [1, 2, 3]})
    with pytest.raises(InvalidPayload):
        state_codec.decode(whole[:-2])
    with pytest.raises(TypeError):
        state_codec.encode(object())


def _reachable(kind: Any, found: set[type]) -> set[type]:
    """Our own classes that a value of this type may consist of."""
    for inner in typing.get_args(kind):
        _reachable(inner, found)
    own = typing.get_origin(kind) or kind
    is_ours = isinstance(own, type) and own.__module__.startswith("parley")
    if is_ours and own not in found:
        found.add(own)
        if not issubclass(own, Enum):
            for inner in typing.get_type_hints(own).values():
                _reachable(inner, found)
    return found


def test_whatever_a_recording_keeps_has_a_tag() -> None:
    # Errors are left out.
    missing = _reachable(entries.Entry, set()) - {ParleyError} - set(entries.TAGS.values())

    assert missing == set()
    assert all("parley" not in tag for tag in entries.TAGS)


def test_the_log_of_a_unit_omits_what_a_replay_computes_again():
    costs: dict[str, Any] = {name: 2.0 for name in UnitResult.__slots__ if name.startswith("cost_")}
    sound = Pcm(np.zeros(100, np.float32), 24_000)
    spoken = units.done(
        3, text="Hi", pcm=sound, timings={Stage.DECODE: 2.0}, prefilled=PrefillResult(2, 2), **costs
    )

    kept = entries.logged(spoken)

    assert len(costs) == 5
    assert isinstance(kept, UnitDone)
    assert asdict(kept) == asdict(units.done(3, text="Hi"))


def test_a_part_of_the_state_that_is_gone_is_gone_for_the_next_worker():
    first, before = state_codec.parts({"runner": {"turn": 1, "answer": "Hel"}}, {})[::-1]

    _, changed = state_codec.parts({"runner": {"turn": 2}}, before)

    assert changed["runner.answer"] == b""
    assert state_codec.joined(first | changed) == {"runner": {"turn": 2}}


def test_sound_that_waits_is_written_once():
    one, two = (Pcm(np.full(160, level, np.float32), 16_000) for level in (0.25, 0.5))
    state: dict[str, Any] = {"runner": {"sounds": {"7": one}}, "empty": {"sounds": {}}}
    before, first = state_codec.parts(state, {})
    state["runner"]["sounds"] = {"7": one, "8": two}

    before, second = state_codec.parts(state, before)
    kept = state_codec.joined(first | second)["runner"]["sounds"]
    state["runner"]["sounds"] = {"8": two}
    _, third = state_codec.parts(state, before)

    assert list(second) == ["runner.sounds.8"]
    assert {name: pcm.samples[0] for name, pcm in kept.items()} == {"7": 0.25, "8": 0.5}
    assert third == {"runner.sounds.7": b""}
    assert state_codec.joined(first)["empty"] == {"sounds": {}}
