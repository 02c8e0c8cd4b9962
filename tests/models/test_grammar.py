"""Answers that keep to a format: whatever a model would like to say, what it writes is valid."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import parley_pocket_data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from parley.errors import InvalidRequest
from parley.models.cascade.store import load_tokenizer
from parley.models.grammar import Grammars, check
from parley.protocol.values import AnswerFormat

EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["fair", "party"]},
        "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}},
        "price": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "guests", "price"],
    "additionalProperties": False,
    "$defs": {
        "guest": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    },
}


@lru_cache(maxsize=1)
def grammars() -> Grammars:
    words = load_tokenizer(Path(parley_pocket_data.__file__).parent)
    return Grammars(words, end=words.token_to_id("<|im_end|>") or 0)


def written(form: AnswerFormat, seed: int, *, long: int) -> str:
    """What a model writes that likes nothing better than anything else, and has `long` tokens
    before it has to come to an end."""
    made = grammars()
    grammar = made.begin(form)
    random = np.random.default_rng(seed)
    ids: tuple[int, ...] = ()
    while len(ids) < 4 * long + 400:
        grammar.follow(ids)
        allowed = grammar.allowed(closing=len(ids) >= long)
        assert allowed.any()
        token = int(random.choice(np.flatnonzero(allowed)))
        if token == made._end:
            return made._words.decode([*ids])
        ids = (*ids, token)
    raise AssertionError(made._words.decode([*ids]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_what_is_written_is_json_of_the_schema(seed):
    text = written(AnswerFormat(type="json_schema", schema=EVENT), seed, long=40)

    assert validator_for(EVENT).is_valid(json.loads(text))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_any_object_is_an_object(seed):
    text = written(AnswerFormat(type="json_object"), seed, long=40)

    assert isinstance(json.loads(text), dict)


def test_going_back_allows_what_was_allowed_there():
    made = grammars()
    grammar = made.begin(AnswerFormat(type="json_schema", schema=EVENT))
    first = grammar.allowed().copy()
    token = int(np.flatnonzero(first)[0])
    grammar.follow((token,))

    grammar.follow(())

    assert (grammar.allowed() == first).all()


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"if": {}, "then": {}}, '"if"'),
        ({"type": "word"}, "word"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
    ],
)
def test_what_a_schema_asks_in_vain_is_refused_by_name(schema, named):
    with pytest.raises(InvalidRequest, match="cannot be enforced") as refused:
        check(AnswerFormat(type="json_schema", schema=schema))

    assert named in str(refused.value)
    assert refused.value.field == "response_format"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"enum": [str(number) for number in range(20_000)]}, "bytes"),
        (
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"p{i * j}": {}}} for i in range(8)]}
                    for j in range(8)
                ]
            },
            "too large",
        ),
    ],
)
def test_a_schema_that_would_hold_up_everybody_is_refused(schema, why):
    with pytest.raises(InvalidRequest, match=why):
        check(AnswerFormat(type="json_schema", schema=schema))


def test_a_schema_that_nothing_keeps_to_is_told_without_the_state_of_the_grammar() -> None:
    grammar = grammars().begin(AnswerFormat(type="json_schema", schema={"$ref": "#"}))

    with pytest.raises(ValueError, match=r"^no answer keeps to it$"):
        grammar.allowed()
