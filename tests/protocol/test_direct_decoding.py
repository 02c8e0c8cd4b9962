"""A message that is decoded straight into its struct means what it would mean if it were read."""

import json
import types
import typing

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from msgspec import NODEFAULT
from tests.support.long import times

from parley.errors import BadInput
from parley.protocol import (
    codec,
    duplex,
    half_duplex,
    minicpmo_v2,
    openai_live,
    openai_realtime,
    realtime,
)

PROTOCOLS = (duplex, half_duplex, realtime, minicpmo_v2, openai_live, openai_realtime)
SHAPES = [(p, name, shape) for p in PROTOCOLS for name, shape in p.SHAPES.items()]
IDS = [f"{p.__name__.rpartition('.')[2]} {name}" for p, name, _ in SHAPES]
VALUES = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-5, 500),
    some.sampled_from([0.0, 1.5, 256.0, 1e300]),
    some.sampled_from(["", "AAAAAA==", "hi", "%%%"]),
    some.lists(some.sampled_from(["AAAA", "", "x", None, 1]), max_size=3),
    some.dictionaries(
        some.sampled_from(["temperature", "max_slice_nums", "threshold", "text", "type"]),
        some.sampled_from([None, 0.5, 2, 2.0, "audio", "x"]),
        max_size=3,
    ),
)


def outcome(read, *arguments):
    """The message, or the error as a client reads it."""
    try:
        return read(*arguments)
    except BadInput as error:
        return type(error), str(error), getattr(error, "field", None)


@pytest.mark.parametrize(("protocol", "name", "shape"), SHAPES, ids=IDS)
def test_direct_decoding_and_reading_agree(
    protocol: types.ModuleType, name: str, shape: codec.Shape
) -> None:
    # What may be anything is kept as it is.
    published = [
        each.encode_name
        for each in msgspec.structs.fields(shape.struct)
        if each.type is not typing.Any
    ]
    others = [other for names in shape.aliases.values() for other in names]
    names = some.sampled_from([*published, *others, *sorted(shape.lifts), "unknown"])

    @settings(
        deadline=None, max_examples=times(20, 200), suppress_health_check=[HealthCheck.too_slow]
    )
    @given(some.dictionaries(names, VALUES, max_size=5))
    def agree(fields: dict[str, object]) -> None:
        raw = json.dumps({"type": name, **fields})

        direct = outcome(protocol.MESSAGES.decode_client, raw)

        assert direct == outcome(protocol.MESSAGES.read_any, raw)

    agree()


@pytest.mark.parametrize(("protocol", "name", "shape"), SHAPES, ids=IDS)
def test_null_is_allowed_only_where_it_means_absent(
    protocol: types.ModuleType, name: str, shape: codec.Shape
) -> None:
    """Direct decoding does not drop nulls, so none may differ from an absent field."""
    del protocol, name
    wrong = [
        each.name
        for each in msgspec.structs.fields(shape.struct)
        if type(None) in typing.get_args(each.type) and each.default not in (None, NODEFAULT)
    ]

    assert wrong == []


def test_an_audio_chunk_is_not_walked_as_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.Messages, "read_any", None)

    message = duplex.decode_client('{"type": "audio_chunk", "audio_base64": "AAAAAA=="}')

    assert message == duplex.AudioChunk(audio_base64="AAAAAA==")


@pytest.mark.parametrize("depth", [30, 63, 64, 5000])
def test_a_nested_message_is_refused_as_ever(depth: int) -> None:
    raw = '{"type": "client_diagnostic", "metrics": ' + "[" * depth + "]" * depth + "}"

    assert outcome(duplex.decode_client, raw) == outcome(duplex.MESSAGES.read_any, raw)


def test_the_phase_is_checked_before_the_rest() -> None:
    def refuse(type_name: str) -> None:
        raise BadInput(f"not now: {type_name}")

    with pytest.raises(BadInput, match="not now: audio_chunk"):
        duplex.decode_client('{"type": "audio_chunk", "audio_base64": 5}', refuse)
