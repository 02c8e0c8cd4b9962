"""Other weights: any causal language model and any Whisper that transformers can load."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch

from parley.errors import InvalidRequest, SetupError
from parley.media.pcm import INPUT_RATE_HZ, Samples
from parley.models.cascade.messages import History
from parley.models.cascade.parts import OneStep
from parley.models.cascade.read_tokens import PIECE_TOKENS, shared
from parley.models.cascade.recognition import Heard
from parley.models.cascade.sampling import choose
from parley.models.cascade.transcript import clean
from parley.models.cascade.writer import AnswerRequest, Draft, Writer, readable
from parley.protocol.values import AnswerFormat


@dataclass(slots=True)
class _Row:
    ids: list[int]
    cache: Any = None
    logits: Any = None


class CausalWriter(Writer):
    """A causal language model of transformers with its own chat template."""

    def __init__(self, model: Any, words: Any, *, rows: int, limit_tokens: int) -> None:
        self.model = model
        self.words = words
        self.limit_tokens = limit_tokens
        self._rows = [_Row([]) for _ in range(rows)]
        # Named `cache` since transformers 5.24; models with code of their own keep the old name.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        ends = model.generation_config.eos_token_id
        self._stops = set(ends if isinstance(ends, list) else [ends]) | {words.eos_token_id}
        specials = [i for i in words.all_special_ids if i not in self._stops]
        self._banned = torch.tensor(specials, dtype=torch.long)

    def check_format(self, form: AnswerFormat) -> None:
        raise InvalidRequest("This model cannot keep to an answer format.", field="answer_format")

    def open(self, row: int) -> None:
        self._rows[row] = _Row([])

    def point(self, row: int) -> object:
        return list(self._rows[row].ids)

    def rewind(self, row: int, point: object) -> None:
        assert isinstance(point, list)
        self._cut(self._rows[row], point)

    def count_text(self, text: str) -> int:
        return len(self.words.encode(text, add_special_tokens=False)) if text else 0

    def is_reading(self, row: int, history: History, draft: Draft) -> bool:
        state = self._rows[row]
        return state.logits is None or state.ids != self._prompt(history) + list(draft.ids)

    def step(self, row: int, request: AnswerRequest, draft: Draft, draws: int) -> Draft:
        state = self._rows[row]
        wanted = self._prompt(request.history) + list(draft.ids)
        if state.ids != wanted or state.logits is None:
            self._cut(state, wanted[:-1])
            piece = wanted[len(state.ids) : len(state.ids) + PIECE_TOKENS]
            self._feed(state, piece)
            return draft
        token = choose(
            state.logits,
            request.rule,
            seed=request.seed,
            draws=draws,
            seen=draft.ids,
            banned=self._banned,
        )
        if token in self._stops:
            text, _ = self._text(draft.ids, is_last=True)
            return replace(draft, text=text, is_over=True)
        ids = (*draft.ids, token)
        is_limit = len(ids) >= request.limit or len(state.ids) + 2 >= self.limit_tokens
        text, is_cut = self._text(ids, is_last=is_limit)
        after = Draft(text, ids, is_cut or is_limit, is_limit and not is_cut, len(ids))
        if not after.is_over:
            self._feed(state, [token])
        return after

    def _text(self, ids: tuple[int, ...], *, is_last: bool) -> tuple[str, bool]:
        text: str = self.words.decode(list(ids), skip_special_tokens=True)
        return readable(text, is_last=is_last)

    def _prompt(self, history: History) -> list[int]:
        messages = [{"role": "system", "content": history.system}] if history.system else []
        messages += [{"role": line.role, "content": line.text} for line in history.lines]
        ids = self.words.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        return list(ids)

    @torch.inference_mode()
    def _feed(self, state: _Row, ids: list[int]) -> None:
        out = self.model(
            input_ids=torch.tensor([ids]),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: state.cache},
        )
        state.cache = getattr(out, self._cache_name)
        state.logits = out.logits[0, -1].float()
        state.ids = state.ids + list(ids)

    def _cut(self, state: _Row, wanted: list[int]) -> None:
        same = shared(state.ids, wanted)
        if same < len(state.ids):
            state.logits = None
            if same == 0 or state.cache is None:
                state.cache, same = None, 0
            else:
                # Number of tokens to remove: transformers 5 does not accept a length to keep.
                state.cache.crop(same - len(state.ids))
            state.ids = state.ids[:same]


class OtherWhisper:
    """A Whisper of transformers; recognises an utterance in one step."""

    def __init__(self, model: Any, processor: Any) -> None:
        self._model, self._processor = model, processor

    def begin(self, samples: Samples) -> OneStep:
        return OneStep(lambda: self._hear(samples))

    @torch.inference_mode()
    def _hear(self, samples: Samples) -> Heard:
        inputs = self._processor(samples, sampling_rate=INPUT_RATE_HZ, return_tensors="pt")
        ids = self._model.generate(inputs.input_features, max_new_tokens=120)
        text: str = self._processor.batch_decode(ids, skip_special_tokens=True)[0]
        return Heard(clean(" ".join(text.split())))


def load_causal(name: str, *, rows: int) -> CausalWriter:
    """From a folder or hub id.

    Raises:
        SetupError: it cannot be loaded.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        words = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name, dtype="auto").eval()
    except Exception as error:  # transformers raises what its parts raise
        raise SetupError(
            f"The language model '{name}' cannot be loaded: {error}",
            hint="Give a folder or a hub id of a causal language model, or the address of a "
            "server, which starts with http:// or https://.",
        ) from error
    if not words.chat_template:
        raise SetupError(
            f"The language model '{name}' has no chat template.",
            hint="Choose one made for chatting.",
        )
    limit = min(int(getattr(model.config, "max_position_embeddings", 4096)), 8192)
    return CausalWriter(model, words, rows=rows, limit_tokens=limit)


def load_whisper(name: str) -> OtherWhisper:
    """From a folder or hub id.

    Raises:
        SetupError: it cannot be loaded.
    """
    try:
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

        processor = AutoProcessor.from_pretrained(name)
        model = AutoModelForSpeechSeq2Seq.from_pretrained(name).eval()
    except Exception as error:  # transformers raises what its parts raise
        raise SetupError(
            f"The recogniser '{name}' cannot be loaded: {error}",
            hint="Give a folder or hub id of a Whisper.",
        ) from error
    return OtherWhisper(model, processor)
