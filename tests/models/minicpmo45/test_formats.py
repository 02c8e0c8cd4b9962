"""Replies of MiniCPM-o with a format: whatever its weights say, what it writes is valid."""

import json
from functools import lru_cache

import pytest
import tokenizers
from jsonschema_rs import validator_for
from tests.contracts.conversations import turn
from tests.golden.tiny import TOKENIZER
from tests.support.small_minicpmo import FIRST_TAG, VOCABULARY, ByteTokenizer, small_model
from tests.support.small_talk import do, together
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers.models import BPE

from parley.engine.segments import Text
from parley.engine.work import Ending, Generate, StartSession
from parley.errors import InvalidRequest
from parley.models.minicpmo45.conversation.formats import Formats
from parley.models.minicpmo45.tokenizer import CheckpointTokenizer
from parley.protocol.values import AnswerFormat

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["fair", "party"]},
        "guests": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["city", "kind", "guests"],
    "additionalProperties": False,
}
FORM = AnswerFormat(type="json_schema", schema=SCHEMA)
CALL = FIRST_TAG + 30


class WrittenBytes(ByteTokenizer):
    """Bytes as bytes, with grammars over them."""

    def __init__(self) -> None:
        super().__init__()
        self._tags |= {"<tool_call>": CALL, "</tool_call>": CALL + 1}
        letters = pre_tokenizers.ByteLevel.alphabet()
        shown = [letter for letter in sorted(letters) if letter.isascii()]
        vocabulary = {letter: ord(letter) for letter in shown}
        # A space and a line break have letters of their own.
        vocabulary |= {"Ġ": 32, "Ċ": 10}
        tags = {token: text for text, token in self._tags.items()}
        for token in sorted({*range(VOCABULARY)} - {*vocabulary.values()}):
            vocabulary[tags.get(token, f"~unused{token}~")] = token
        self.rules = tokenizers.Tokenizer(BPE(vocabulary, []))
        self.rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.rules.decoder = decoders.ByteLevel()
        self.rules.add_tokens([AddedToken(text) for text in self._tags])

    def decode(self, ids, *, skip_special=False):
        return self.rules.decode(list(ids), skip_special_tokens=skip_special)


@pytest.fixture(scope="module")
def model():
    made = small_model(slots=2)
    made.tokenizer = WrittenBytes()
    made.formats = Formats(made.tokenizer, VOCABULARY)
    yield made
    made.unload()


def reply(model, seed: int, row: int = 0, **options):
    do(model, StartSession("chat", speak=options.get("speak", False), seed=seed), row)
    do(model, turn("user", Text("Where is the fair?"), is_closed=False), row)
    options = {"max_new_tokens": 300, "speak": False, **options}
    reply = Generate(temperature=1.5, top_k=0, top_p=1.0, answer_format=FORM, **options)
    return model.start(row, reply)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_reply_is_json_of_the_schema(model, seed, is_whole):
    (result,) = together(model, [reply(model, seed, is_whole=is_whole)])

    assert validator_for(SCHEMA).is_valid(json.loads(result.text))
    assert result.ending is Ending.DONE


@pytest.mark.parametrize("options", [{"do_sample": False}, {"speak": True}])
def test_probable_tokens_and_speech_keep_to_the_schema_too(model, options):
    (result,) = together(model, [reply(model, 2, **options)])

    assert validator_for(SCHEMA).is_valid(json.loads(result.text))
    assert bool(result.speech_tokens) is ("speak" in options)


def test_rows_without_a_format_are_as_free_as_before(model):
    free = Generate(max_new_tokens=30, speak=False, temperature=1.5)

    def started():
        do(model, StartSession("chat", speak=False, seed=9), 1)
        do(model, turn("user", Text("Hello."), is_closed=False), 1)
        return model.start(1, free)

    (alone,) = together(model, [started()])
    formatted, other = together(model, [reply(model, 3), started()])

    assert other.text == alone.text
    assert json.loads(formatted.text)


def test_a_schema_that_cannot_be_enforced_is_refused_by_name(model):
    do(model, StartSession("chat", speak=False, seed=1))
    do(model, turn("user", Text("Hello."), is_closed=False))
    form = AnswerFormat(type="json_schema", schema={"not": {"type": "string"}})

    with pytest.raises(InvalidRequest, match='"not"'):
        model.start(0, Generate(answer_format=form))


def test_a_grammar_that_gives_up_ends_its_reply_alone(model):
    job = reply(model, 4)

    def gives_up(ids):
        if len(ids) == 3:
            raise ValueError("too many states")
        return working(ids)

    working, job.allowed = job.allowed, gives_up
    failed, other = together(model, [job, reply(model, 5, row=1)])

    assert "too many states" in failed.problem
    assert validator_for(SCHEMA).is_valid(json.loads(other.text))


def test_a_call_may_stand_in_place_of_the_answer(model):
    formats, ends = model.formats, model.tokenizer.ids.reply_terminators
    call = model.tokenizer.encode('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')

    allowed = formats.begin(FORM, ends, 300, may_call=True)
    never = formats.begin(FORM, ends, 300, may_call=False)

    assert allowed([])[CALL]
    assert not never([])[CALL]
    assert all(allowed(call[:n])[call[n]] for n in range(len(call)))
    assert allowed(call)[[*ends]].all()


@lru_cache(maxsize=1)
def published() -> tuple[CheckpointTokenizer, Formats]:
    words = CheckpointTokenizer(TOKENIZER)
    return words, Formats(words, words.size)


@pytest.mark.skipif(
    not (TOKENIZER / "vocab.json").is_file(), reason="the model's tokenizer files are absent"
)
def test_the_published_tokenizer_writes_valid_answers_and_calls():
    words, formats = published()
    answer = words.encode('{"city":"Zürich 🎡","kind":"fair","guests":[4]}')
    call = words.encode('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    ends = words.ids.reply_terminators

    for ids in (answer, call):
        allowed = formats.begin(FORM, ends, 300, may_call=True)
        assert all(allowed(ids[:n])[ids[n]] for n in range(len(ids)))
        assert allowed(ids)[[*ends]].all()
    within = formats.begin(FORM, ends, 300, may_call=False)(answer[:5])
    assert not within[
        [words.ids.eos_word, words.ids.unk, words.ids.tts_bos, words.ids.im_end]
    ].any()
