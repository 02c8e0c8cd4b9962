"""A message that is decoded straight into its struct means what it would mean if it were read."""

import json
import types
import typing
from random import Random
from typing import Any

import msgspec
import pytest
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
NESTED = ("temperature", "max_slice_nums", "threshold", "text", "type")
PLAIN = (None, True, False, -5, 0, 3, 500, 0.0, 1.5, 256.0, 1e300, "", "AAAAAA==", "hi", "%%%")


def some_value(random: Random) -> Any:
    match random.randrange(4):
        case 0:
            return [random.choice(("AAAA", "", "x", None, 1)) for _ in range(random.randint(0, 3))]
        case 1:
            inner = (None, 0.5, 2, 2.0, "audio", "x")
            return {
                random.choice(NESTED): random.choice(inner) for _ in range(random.randint(0, 3))
            }
    return random.choice(PLAIN)


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
        each.encode_name for each in msgspec.structs.fields(shape.struct) if each.type is not Any
    ]
    others = [other for names in shape.aliases.values() for other in names]
    names = [*published, *others, *sorted(shape.lifts), "unknown"]
    random = Random(name)

    for _ in range(times(60, 600)):
        fields = {n: some_value(random) for n in random.choices(names, k=random.randint(0, 5))}
        raw = json.dumps({"type": name, **fields})

        direct = outcome(protocol.MESSAGES.decode_client, raw)

        assert direct == outcome(protocol.MESSAGES.read_any, raw), raw


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
