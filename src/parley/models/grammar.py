"""Constrained answers: the tokens that may come next under a format.

A grammar over the model's tokens, built by llguidance from a JSON schema. The sampler calls
`Grammar.allowed` before it chooses each token, so that the text is always the beginning of a valid
answer. Independent of models and engines. `V`: size of the vocabulary.

Source: llguidance's documentation of JSON schemas (it rejects "Unimplemented keys").
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from parley.errors import InvalidRequest
from parley.protocol.values import AnswerFormat

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.bool_]

FIELD: Final = "response_format"
SCHEMA_BYTES: Final = 32 << 10
"""Maximum size of a schema: it is compiled on the thread that generates all answers."""
OBJECT: Final[dict[str, Any]] = {"type": "object"}
"""Schema of `json_object`."""
CLOSERS: Final = frozenset('"}]')
"""Tokens that consist only of these bring an answer closer to its end."""


class Grammars:
    """Builds grammars for one tokenizer. Reading its vocabulary takes a third of a second for
    16,000 tokens, and is deferred until the first answer with a format.

    Args:
        end: the token that ends an answer.
        vocabulary: size of the logits, if larger than the tokenizer's vocabulary.
    """

    def __init__(self, words: Tokenizer, *, end: int, vocabulary: int | None = None) -> None:
        self._words = words
        self._end = end
        self.size = vocabulary or words.get_vocab_size(with_added_tokens=True)

    def warm_up(self) -> None:
        """Read the vocabulary now."""
        _ = (self._tokenizer, self.quotes, self.brackets)

    def begin(self, form: AnswerFormat, *, instead: str = "") -> Grammar:
        """The grammar of an answer, positioned at its start.

        Args:
            instead: a rule `calls` in llguidance's variant of Lark, for what may replace the
                answer.

        Raises:
            InvalidRequest: the schema is invalid, or requires something that cannot be enforced;
                the message names it.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, source_of(form, instead), log_level=0)
        if matcher.is_error():
            raise refused(matcher.get_error())
        return Grammar(matcher, self)

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        return LLTokenizer(self._words.to_str(), n_vocab=self.size, eos_token=self._end)

    @cached_property
    def quotes(self) -> Mask:
        """Mask of the tokens that end a string, and possibly what encloses it (V,)."""
        return self._tokens_of('"')

    @cached_property
    def brackets(self) -> Mask:
        """Mask of the tokens that end an object, an array or the answer (V,)."""
        found = self._tokens_of("}]")
        found[self._end] = True
        return found

    def _tokens_of(self, first: str) -> Mask:
        """Mask of the tokens that consist only of `CLOSERS` and start with one of `first`."""
        found = np.zeros(self.size, np.bool_)
        for token in range(self._words.get_vocab_size(with_added_tokens=True)):
            text = self._words.decode([token], skip_special_tokens=False)
            found[token] = text[:1] in first and set(text) <= CLOSERS if text else False
        return found

    def ends_in_string(self, ids: tuple[int, ...]) -> bool:
        """True if the JSON written so far ends within a string."""
        text = self._words.decode([*ids]).replace("\\\\", "").replace('\\"', "")
        return text.count('"') % 2 == 1


class Grammar:
    """Position of one answer in its format."""

    def __init__(self, matcher: LLMatcher, grammars: Grammars) -> None:
        self._matcher = matcher
        self._grammars = grammars
        self.ids: tuple[int, ...] = ()
        """The tokens so far."""

    def follow(self, ids: tuple[int, ...]) -> None:
        """Move to the position after `ids`, forwards or backwards.

        Raises:
            ValueError: these tokens do not conform to the format.
        """
        same = len(self.ids)
        if ids[:same] != self.ids:
            self._matcher.reset()
            same = 0
        if not self._matcher.consume_tokens(list(ids[same:])):
            raise ValueError(_reason(self._matcher.get_error()) or "tokens outside of the format")
        self.ids = ids

    def forced(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that must follow `ids`: names of fields, and the punctuation between them.

        Raises:
            ValueError: as `follow`.
        """
        self.follow(ids)
        return tuple(self._matcher.compute_ff_tokens())

    def allowed(self, *, closing: bool = False) -> Mask:
        """Mask of the tokens that may come next (V,).

        Args:
            closing: only those that bring the answer closer to its end, if there are any.

        Raises:
            ValueError: the format exceeds llguidance's limits of time or memory.
        """
        size = self._grammars.size
        words = np.zeros((size + 31) // 32, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise ValueError(_reason(self._matcher.get_error()))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:size].astype(np.bool_)
        if not closing:
            return bits
        ways = [self._grammars.brackets, self._grammars.quotes]
        if self._grammars.ends_in_string(self.ids):
            ways = [self._grammars.quotes]
        nearer = (bits & way for way in ways)
        return next((way for way in nearer if way.any()), bits)


def source_of(form: AnswerFormat, instead: str = "") -> str:
    """A format in llguidance's notation. Compact JSON, because a small model would fill lines with
    blanks.

    Raises:
        InvalidRequest: the schema is none.
    """
    from llguidance import LLMatcher

    asked = OBJECT if form.type == "json_object" else (form.schema or {})
    schema = json.dumps(asked)
    if len(schema) > SCHEMA_BYTES:
        raise refused(f"It has {len(schema)} bytes; {SCHEMA_BYTES} are possible.")
    if instead:
        compact = json.dumps({**asked, "x-guidance": {"whitespace_flexible": False}})
        return f"start: answer | calls\nanswer: %json {compact}\n{instead}"
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    except ValueError as error:
        raise refused(str(error)) from None


def check(form: AnswerFormat) -> None:
    """Reject a format that cannot be enforced, before any token is chosen.

    Raises:
        InvalidRequest: the message names what cannot be enforced.
    """
    from llguidance import LLMatcher

    problem = LLMatcher.validate_grammar(source_of(form))
    if problem:
        raise refused(problem)


def refused(why: str) -> InvalidRequest:
    """The error for a schema, with llguidance's reason."""
    return InvalidRequest(
        f"{FIELD}: this schema cannot be enforced here. {_reason(why)}", field=FIELD
    )


def _reason(why: str) -> str:
    """llguidance's reason, without the grammar and its state, which follow the first line."""
    reason = why.strip().partition("\n")[0][:200]
    return "no answer keeps to it" if reason == "NoExtensionBias" else reason
