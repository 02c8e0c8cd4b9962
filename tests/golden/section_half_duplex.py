"""Turn-based sessions, step by step, and one request prefilled together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from tests.golden import media, talking
from tests.golden.case import Case, Checker
from tests.golden.recorded import RecordedWords
from tests.golden.section_chat import answer_text
from tests.golden.section_prompts import read, segments_of
from tests.golden.talking import ROW, conversation, windows_of

from parley.engine.segments import Audio, Hearing, Image, Mark, Marker, Segment, Text
from parley.engine.work import Generate, Prefill, StartSession, Window
from parley.models.minicpmo45.audio_encoder.mel import HOP, LiveMelOptions
from parley.models.minicpmo45.conversation import replies
from parley.models.minicpmo45.conversation.replies import ReplyJob, WholeReplyJob
from parley.models.minicpmo45.prompt.layout import answer_prompt


@contextmanager
def opening_speech(opens: bool) -> Iterator[None]:
    """Replies whose prompt opens speech, or does not: the product's always does."""

    def prompt(**given: bool) -> str:
        return answer_prompt(**{**given, "use_tts_template": opens})

    with patch.object(replies, "answer_prompt", prompt):
        yield


def run(case: Case, check: Checker) -> None:
    if "steps" in case.json:
        Session(case, check).run()
    else:
        _one_call(case, check)


DEFAULTS = {
    "max_new_tokens": 256,
    "temperature": 0.7,
    "repetition_penalty": 1.02,
    "length_penalty": 1.0,
    "generate_audio": True,
}
"""Of the public streaming call, where a step does not say. Source: model.md 10.6."""


class Session:
    """A recorded session, replayed."""

    def __init__(self, case: Case, check: Checker) -> None:
        self.case = case
        self.check = check
        self.model, self.seen = talking.build(case)
        self.dropped_tokens = 0
        settings = case.json.get("config", {})
        frames = settings.get("cnn_redundancy_ms", 0) // 10
        self.model.turn_mel = LiveMelOptions(redundancy_frames=frames)
        high, low = settings.get("window_high_low", [8000, 6000])
        window = Window("basic", high, low)
        talking.run(self.model, StartSession("half_duplex", seed=1, window=window))
        self.checkpoint: Any = None
        self.answers = 0

    def run(self) -> None:
        for number, step in enumerate(self.case.json["steps"]):
            self.dropped_tokens += sum(tokens for tokens, _ in self.seen.dropped)
            self.seen.clear()
            what = f"{number} {step['op']}"
            match step["op"]:
                case "prefill":
                    self.prefill(what, step)
                case "generate":
                    self.generate(what, step)
                case "restore_speculative_snapshot":
                    can = self.checkpoint is not None and self.model.can_roll_back(self.checkpoint)
                    self.check.equal(f"{what} ok", can, step["ok"])
                    if can:
                        self.model.roll_back(self.checkpoint)
                    self.checkpoint = None
                case other:
                    self.check.note(f"unknown step {other}")
            if step.get("state") is not None:
                self.state(what, step["state"])

    def prefill(self, what: str, step: dict[str, Any]) -> None:
        args = step.get("args", {})
        job: Any = self.model.start(ROW, Prefill(tuple(_segments(step["msg"], args))))
        job.work.is_last = bool(args.get("is_last_chunk"))
        self.check.equal(f"{what} ids", job.prompt.ids, step["input_ids"])
        talking.run(self.model, job)
        self.seen.check_calls(self.check, what, step.get("llm_calls", []))

    def generate(self, what: str, step: dict[str, Any]) -> None:
        args = {**DEFAULTS, **step.get("args", {})}
        if args.get("enable_speculative_snapshot"):
            self.checkpoint = self.model.checkpoint(ROW)
        reply = Generate(
            max_new_tokens=args["max_new_tokens"],
            temperature=args["temperature"],
            repetition_penalty=args["repetition_penalty"],
            length_penalty=args["length_penalty"],
            do_sample=False,
            speak=args["generate_audio"],
            enable_thinking=args.get("enable_thinking", False),
        )
        template = args.get("use_tts_template", True)
        with opening_speech(template):
            job = ReplyJob(self.model, conversation(self.model), reply)
        words = self.model.tokenizer
        if isinstance(words, RecordedWords):
            self.model.tokenizer = _Counted(words, step)
        pieces = talking.pieces_of(self.model, job)
        self.model.tokenizer = words
        self.chunks(what, step["chunks"])
        self.seen.check_calls(self.check, what, step.get("llm_calls", []))
        if args["generate_audio"]:
            yielded = [
                {"wave_samples": 0 if p.pcm is None else len(p.pcm), "text": p.text} for p in pieces
            ]
            self.speech(what, step)
        else:
            ends = [group.is_last for group in self.seen.groups]
            texts = [piece.text for piece in pieces]
            yielded = [
                {"text": text, "finished": end} for text, end in zip(texts, ends, strict=False)
            ]
        self.check.equal(f"{what} yielded", yielded, step["yielded"])
        self.answers += 1

    def chunks(self, what: str, wanted: list[dict[str, Any]]) -> None:
        groups = self.seen.groups
        tokens = [choice.token for choice in self.seen.choices]
        if groups and groups[-1].is_last:
            tokens = tokens[:-1]
        self.check.equal(f"{what} chunks", len(groups), len(wanted))
        for index, (group, want) in enumerate(zip(groups, wanted, strict=False)):
            mine = tokens[:11] if index == 0 else tokens[1 + 10 * index : 11 + 10 * index]
            name = f"{what} chunk {index}"
            self.check.equal(f"{name} ids", mine, want["chunk_token_ids"])
            self.check.equal(f"{name} finished", group.is_last, want["finished"])
            hidden = torch.stack(list(group.hidden))
            self.check.summary(f"{name} hidden", hidden[None], want["last_hidden"])
            key = f"gen{self.answers}_hidden{index}"
            if key in self.case.arrays:
                self.check.close(f"{name} hidden", hidden, self.case.arrays[key])

    def speech(self, what: str, step: dict[str, Any]) -> None:
        wanted = step["tts_chunks"]
        self.check.equal(f"{what} speech calls", len(self.seen.blocks), len(wanted))
        for index, want in enumerate(wanted[: len(self.seen.blocks)]):
            name = f"{what} speech {index}"
            given, block = self.seen.conditions[index], self.seen.blocks[index]
            self.check.summary(f"{name} condition", given.rows[None], want["condition"])
            key = f"gen{self.answers}_tts_condition{index}"
            if key in self.case.arrays:
                self.check.close(f"{name} condition", given.rows, self.case.arrays[key])
            self.check.equal(f"{name} finished", given.is_last, want["text_finished"])
            self.check.equal(f"{name} position", block.position, want["text_start_pos"])
            self.check.equal(f"{name} cache", block.columns, want["tts_cache_len"])
        self.check.equal(f"{what} vocoder", windows_of(self.seen.windows), step["token2wav_calls"])

    def state(self, what: str, want: dict[str, Any]) -> None:
        found = conversation(self.model)
        state, rounds, mel = found.state, found.state.rounds, found.state.mel
        got = {
            "llm_cache": self.model.context.lengths[ROW],
            "audio_cache": self.model.audio_cache.lengths[ROW],
            "audio_chunk_idx": state.turn_sounds,
            "new_user_msg": state.new_turn,
            "llm_generated": state.has_replied,
            "llm_generate_completed": False,
            "next_round": rounds.next_round,
            "pending_round": rounds.pending_round,
            "preserve": rounds.protected_tokens,
            "position_offset": self.dropped_tokens + sum(one for one, _ in self.seen.dropped),
            "history": [
                {"type": chunk.kind, "round": chunk.round, "length": chunk.tokens}
                for chunk in rounds.chunks
            ],
            "mel": {
                "chunk_count": mel.pushed_chunks,
                "last_emitted_T": mel.next_frame,
                "total_samples_processed": HOP * mel.base_frame + len(mel.samples),
                "buffer_len": len(mel.samples),
                "base_T": mel.base_frame,
                "left_samples_dropped": HOP * mel.base_frame,
            },
        }
        for key, value in want.items():
            self.check.equal(f"{what} {key}", got.get(key), value)


class _Counted(RecordedWords):
    """Without the real tokenizer, how many tokens an answer's text makes is taken from the case."""

    def __init__(self, words: RecordedWords, step: dict[str, Any]) -> None:
        self.__dict__.update(words.__dict__)
        last = step["state"]["history"][-1] if step.get("state") else {}
        self._count = last.get("length", 0) if last.get("type") == "assistant" else 0

    def encode(self, text: str, *, literal: bool = False) -> list[int]:
        return [0] * self._count


def _segments(spec: dict[str, Any], args: dict[str, Any]) -> list[Segment]:
    spoken = media.message(spec)
    glue = "" if args.get("omni_mode", True) else "\n"
    segments: list[Segment] = [Marker(Mark.TURN_START, spoken.role)]
    live = spoken.role == "user" and args.get("stream_input") is not False
    for index, part in enumerate(spoken.parts):
        if index and glue:
            segments.append(Text(glue))
        match part:
            case str():
                segments.append(Text(part))
            case Audio(pcm):
                hearing: Hearing = "live" if live else "turn" if spoken.role == "user" else "voice"
                segments.append(Audio(pcm, hearing))
            case Image(pixels):
                segments.append(Image(pixels, max_slices=args.get("max_slice_nums")))
    segments.append(Marker(Mark.TURN_END, spoken.role))
    return segments


def _one_call(case: Case, check: Checker) -> None:
    """All messages together, then a whole reply, by the product's own path."""
    given = case.json["input"]
    request = read(case, given["msgs"], given, answer=False)
    check.equal("prompt", request.rendered, case.json["prompt"])
    model, seen = talking.build(case)
    talking.run(model, StartSession("chat", speak=False, seed=1))
    talking.run(model, Prefill(tuple(segments_of(given["msgs"], given))))
    check.equal("cache", model.context.lengths[ROW], case.json["cache_after_prefill"])
    spoken = any(place.kind == "audio" for place in request.prompt.places)
    reply = Generate(
        max_new_tokens=given["max_new_tokens"],
        repetition_penalty=given["repetition_penalty"],
        do_sample=False,
        speak=False,
        is_whole=True,
    )
    template = given.get("use_tts_template", False) or spoken
    with opening_speech(template):
        job = WholeReplyJob(model, conversation(model), reply)
    talking.run(model, job)
    # The public call gives out the id at the limit, too; ours chooses it and lets it go.
    ids = [choice.token for choice in seen.choices]
    text = answer_text(case, ids, model.tokenizer.ids.chat_terminators)
    check.equal("text", text, case.json["text"])
    check.equal("cache_after", model.context.lengths[ROW], case.json["cache_after"])
    seen.check_calls(check, "reply", case.json["llm_calls"])
