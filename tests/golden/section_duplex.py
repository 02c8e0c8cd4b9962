"""Full duplex, unit by unit, and tables of single choices."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from msgspec import structs
from tests.golden import media, talking
from tests.golden.case import Case, Checker
from tests.golden.duplex_tables import decode_table, sampling_table
from tests.golden.talking import ROW, Call, conversation, windows_of
from torch import Tensor

from parley.engine.segments import Audio, Image, Mark, Marker, Segment, Text
from parley.engine.work import Ending, Finalize, Prefill, Stage, StartSession, StepUnit, Window
from parley.media.pcm import Pcm
from parley.models.job import ModelJob
from parley.models.minicpmo45.conversation.prefill import Feed
from parley.models.minicpmo45.llm.sampling import Ask, Choice
from parley.models.minicpmo45.prompt.layout import Prompt
from parley.models.minicpmo45.stages import read_ends
from parley.protocol.values import DuplexConfig

SUMS = {"k0_sum", "k_last_sum", "v_last_sum"}
OPTION_NAMES = set(DuplexConfig.__struct_fields__)


def run(case: Case, check: Checker) -> None:
    if "units" in case.json:
        Session(case, check).run()
    elif "mode" in case.json:
        decode_table(case, check)
    else:
        sampling_table(case, check)


class Script:
    """Chooses what it was told, then the end of the unit."""

    def __init__(self, tokens: Sequence[int], end: int) -> None:
        self.tokens = list(tokens)
        self.end = end

    def choose(self, logits: Tensor, asks: Sequence[Ask]) -> list[Choice]:
        return [Choice(self.tokens.pop(0) if self.tokens else self.end, False) for _ in asks]


class Session:
    """A recorded conversation, replayed."""

    def __init__(self, case: Case, check: Checker) -> None:
        self.case = case
        self.check = check
        self.model, self.seen = talking.build(case)
        self.chooser = self.model.chooser
        init = case.json["init"]
        self.window = _window(init)
        chosen = {key: value for key, value in init.items() if key in OPTION_NAMES}
        # The public component listens from the start; and wherever it draws, the most probable
        # entry was taken when the vectors were made.
        greedy = {"decode_mode": "greedy", "tts_temperature": 0.0}
        chosen = {"force_listen_count": 0, **chosen, **greedy}
        options = DuplexConfig(**chosen)
        self.options = options
        talking.run(
            self.model,
            StartSession(
                "duplex",
                speak=options.generate_audio,
                seed=1,
                window=self.window,
                duplex=options,
            ),
        )
        self.units: list[dict[str, Any]] = []
        self.dropped_units = 0
        self.dropped_tokens = 0
        self.said: list[int] = []
        self.start, self.kind = 0, ""
        self.unread: list[tuple[str, str, dict[str, Any]]] = []

    def run(self) -> None:
        self.prepare(self.case.json["prepare"])
        for number, unit in enumerate(self.case.json["units"]):
            self.prefill(number, unit["spec"], unit["prefill"])
            self.generate(number, unit)
            if unit.get("finalize") is not None:
                self.finalize(number, unit["finalize"])
        self.seen.clear()
        read_ends(self.model, [conversation(self.model)])
        self.read()
        for want in self.case.json.get("probe_after") or []:
            self.probe(want)

    def prepare(self, want: dict[str, Any]) -> None:
        self.seen.clear()
        args = want["args"]
        prefix, suffix = args["prefix_system_prompt"], args.get("suffix_system_prompt")
        segments: list[Segment] = [Text(prefix)]
        if args.get("ref_audio") is not None:
            segments.append(Audio(Pcm(media.audio(args["ref_audio"]), 16000), "voice"))
        if suffix:
            segments.append(Text(suffix))
        job: Any = self.model.start(ROW, Prefill(tuple(segments)))
        job.protects = True
        job.suffix = len(self.model.tokenizer.encode(suffix)) if suffix else 0
        talking.run(self.model, job)
        self.fed("prepare", "prep", want["fed"], self.seen.calls)
        self.state("prepare", want["state"])

    def fed(self, what: str, prefix: str, wanted: list[dict[str, Any]], calls: list[Call]) -> None:
        """Recorded feeds against ours: a recorded one is a part of one of our calls."""
        end = max((call.end for call in calls), default=0)
        if wanted:
            self.check.equal(f"{what} end", end, wanted[-1]["cache_after"])
        else:
            self.check.equal(f"{what} calls", len(calls), 0)
        self.parts(what, prefix, wanted, calls)

    def parts(
        self, what: str, prefix: str, wanted: list[dict[str, Any]], calls: list[Call]
    ) -> None:
        for index, want in enumerate(wanted):
            name = f"{what} feed {index}"
            start = want["position_start"]
            count = want["cache_after"] - start
            call = next((c for c in calls if c.start <= start and start + count <= c.end), None)
            if call is None:
                self.check.note(f"{name}: nothing of ours covers [{start}, {start + count})")
                continue
            part = slice(start - call.start, start - call.start + count)
            if "tokens" in want:
                self.check.equal(f"{name} ids", call.ids[part], want["tokens"])
            if "embeds_stat" in want:
                self.check.summary(f"{name} embeds", call.embeds[part], want["embeds_stat"])
            found = re.compile(rf"{prefix}_embeds{index}_every(\d+)")
            for key, array in self.case.arrays.items():
                if (match := found.fullmatch(key)) is not None:
                    got = call.embeds[part][:: int(match[1])]
                    self.check.close(f"{name} embeds", got, array)
            self.last(name, call, part.stop - 1, want)

    def last(self, name: str, call: Call, place: int, want: dict[str, Any]) -> None:
        """State and logits of a feed's last position, where they were asked for."""
        if "hidden_last" in want:
            hidden = call.hidden[place]
            self.check.summary(f"{name} hidden", hidden, want["hidden_last"])
            key = want.get("hidden_key")
            if key in self.case.arrays:
                self.check.close(f"{name} hidden", hidden, self.case.arrays[key])
        if "top5_ids" in want:
            logits = self.model.network.llm.logits(call.hidden[place])
            self.check.top(name, logits, want["top5_ids"], want["top5_logits"])

    def prefill(self, number: int, spec: dict[str, Any], want: dict[str, Any]) -> None:
        self.seen.clear()
        what = f"unit {number} prefill"
        job: Any = self.model.start(ROW, Prefill(tuple(_unit(spec))))
        talking.run(self.model, job)
        self.check.equal(f"{what} success", not job.is_short, want["success"])
        if self.seen.calls:
            self.read()
            self.start = conversation(self.model).ledger.length_tokens - job.added
            seen, heard = job.work.pictures, spec.get("audio") is not None
            self.kind = ("omni" if heard else "vision") if seen else "audio"
        self.fed(what, f"u{number}", want["fed"], self.seen.calls)
        length = self.model.context.lengths[ROW]
        self.check.equal(f"{what} cache", length, want["kv_cache_length"])
        if "schema" in want:
            self.check.equal(f"{what} schema", _schema(job.prompt), want["schema"])

    def generate(self, number: int, unit: dict[str, Any]) -> None:
        want, script = unit["generate"], unit["spec"].get("script")
        what = f"unit {number}"
        self.seen.clear()
        args = want["args"]
        found = conversation(self.model)
        chosen = {key: value for key, value in args.items() if key in OPTION_NAMES}
        options = structs.replace(self.options, **{**chosen, "decode_mode": "greedy"})
        found.opening = dataclasses.replace(found.opening, duplex=options)
        end = self.model.tokenizer.ids.chunk_eos
        self.model.chooser = self.chooser if script is None else Script(script, end)
        job: Any = self.model.start(ROW, StepUnit(bool(args.get("force_listen_override"))))
        pieces = talking.pieces_of(self.model, job)
        result = job.result
        waves = [len(piece.pcm) for piece in pieces if piece.pcm is not None]
        is_listen = result.ending is Ending.LISTEN
        unsettled = found.state.unsettled
        fed = [token for call in self.seen.calls for token in call.ids]
        terminator = (
            [] if unsettled is None or unsettled.terminator is None else [unsettled.terminator]
        )
        forced = int(job.interrupts) if unsettled is not None else 0
        speak = self.model.tokenizer.ids.speak
        self.said += [token for token in fed[forced:] if token != speak]
        got = {
            "is_listen": is_listen,
            "text": result.text,
            "end_of_turn": result.end_of_turn,
            "n_tokens": result.text_tokens,
            "n_tts_tokens": result.speech_tokens,
            "current_time": found.state.units,
            "wave_samples": sum(waves) if waves else 24000,
            "total_ids_added": fed + terminator,
            "handed_to_tts_ids": [] if is_listen else job.tokens,
            "kv_cache_length": self.model.context.lengths[ROW],
            "needs_finalize": unsettled is not None,
        }
        self.steps(what, number, want["steps"])
        for key, value in got.items():
            if key in want:
                self.check.equal(f"{what} {key}", value, want[key])
        self.speech(what, number, want, job)

    def steps(self, what: str, number: int, wanted: list[dict[str, Any]]) -> None:
        decided = [step["decode"] for step in wanted if "decode" in step]
        self.check.equal(f"{what} decided", [c.token for c in self.seen.choices], decided)
        feeds = [step for step in wanted if "decode" not in step]
        self.fed(what, f"u{number}_none", feeds, self.seen.calls)

    def speech(self, what: str, number: int, want: dict[str, Any], job: Any) -> None:
        blocks = self.seen.blocks
        self.check.equal(f"{what} speech calls", len(blocks), len(want["tts"]))
        for index, (block, recorded) in enumerate(zip(blocks, want["tts"], strict=False)):
            name = f"{what} speech {index}"
            self.check.summary(f"{name} condition", block.condition[None], recorded["condition"])
            self.check.equal(f"{name} min", block.rule.min_new, recorded["min_new_tokens"])
            self.check.equal(f"{name} max", block.rule.max_new, recorded["max_new_token"])
            before = block.position - block.condition.shape[0] - len(block.tokens)
            self.check.equal(f"{name} start", before, recorded["text_start_pos"])
            self.check.equal(f"{name} cache", block.columns, recorded["cache_len_after"])
            self.check.equal(f"{name} tokens", block.tokens, recorded["tokens"])
            key = f"u{number}_tts_condition"
            if key in self.case.arrays:
                self.check.close(f"{name} condition", block.condition, self.case.arrays[key])
        if want["tts"] or not want["is_listen"]:
            for index, hidden in enumerate(job.hidden):
                key = f"u{number}_tts_hidden{index}"
                if key in self.case.arrays:
                    self.check.close(f"{what} handed {index}", hidden, self.case.arrays[key])
        self.check.equal(f"{what} vocoder", windows_of(self.seen.windows), want["token2wav_calls"])

    def finalize(self, number: int, want: dict[str, Any]) -> None:
        self.seen.clear()
        what = f"unit {number} finalize"
        talking.run(self.model, Finalize())
        for unit, end in self.seen.units:
            self.units.append(
                {
                    "unit_id": len(self.units) + self.dropped_units,
                    "length": end - self.start,
                    "type": self.kind,
                    "is_listen": unit.is_listen,
                    "generated_tokens": list(unit.tokens),
                    "generated_text": unit.text,
                }
            )
        for tokens, entries in self.seen.dropped:
            self.units = self.units[entries:]
            self.dropped_units += entries
            self.dropped_tokens += tokens
        if conversation(self.model).state.unread:
            self.unread.append((what, f"u{number}_none", want))
        else:
            self.fed(what, f"u{number}_none", want["fed"], self.seen.calls)
        if want.get("state") is not None:
            self.state(what, want["state"])

    def read(self) -> None:
        """The ends of units, which the network has read by now."""
        for what, prefix, want in self.unread:
            self.parts(what, prefix, want["fed"], self.seen.calls)
            length = want["fed"][-1]["cache_after"]
            self.sums(what, want.get("state") or {}, length)
        self.unread = []

    def state(self, what: str, want: dict[str, Any]) -> None:
        found = conversation(self.model)
        state, ledger, speech = found.state, found.ledger, found.speech
        previous = list(ledger._previous)
        marked = [*self.model.marker_ids, *previous] if previous else []
        is_context = self.window.kind == "context"
        got = {
            "kv_cache_length": ledger.length_tokens,
            "units": self.units,
            "preserve": ledger.protected_tokens,
            "position_offset": 0 if is_context else self.dropped_tokens,
            "previous_text": self.model.tokenizer.decode(previous),
            "previous_token_ids": marked,
            "previous_content_length": len(marked),
            "preserve_prefix_length": ledger._head_tokens if is_context else 0,
            "dropped_units": self.dropped_units,
            "audio_chunk_idx": state.units,
            "audio_buffer": len(state.buffered),
            "speak_count": len(self.said),
            "current_turn_ended": state.turn_ended,
            "tts_text_start_pos": speech.row.position if speech is not None else 0,
            "token2wav_buffer": speech.unit_tokens.tokens if speech is not None else [],
            "res_ids": self.said,
            "decoder_generated_tokens": len(state.history),
        }
        if not state.unread:
            self.sums(what, want, ledger.length_tokens)
        for key in want.keys() - SUMS:
            self.check.equal(f"{what} {key}", got.get(key), want[key])

    def sums(self, what: str, want: dict[str, Any], length: int) -> None:
        """Sums over the caches up to `length`."""
        found = talking.cache_sums(self.model, ROW, length)
        for key in want.keys() & SUMS:
            self.check.total(f"{what} {key}", found[key], want[key])

    def probe(self, want: dict[str, Any]) -> None:
        self.seen.clear()
        talking.run(self.model, _Probe(self.model, want["tokens"]))
        self.fed("probe", "probe_none", [want], self.seen.calls)


class _Probe(ModelJob):
    """Feeds ids that belong to no unit."""

    wants_logits = False

    def __init__(self, model: Any, ids: list[int]) -> None:
        super().__init__(ROW, Stage.PREFILL)
        self.model = model
        self.ids = ids
        self.feed: Feed | None = None

    def begin_feed(self) -> None:
        self.feed = Feed(self.model.network.llm.embed(self.ids), self.ids)

    def fed(self, logits: Tensor | None) -> None:
        self.stage = None


def _window(init: dict[str, Any]) -> Window:
    defaults = Window()
    kind = init.get("sliding_window_mode", "off")
    return Window(
        kind,
        high_tokens=init.get("basic_window_high_tokens", 4000),
        low_tokens=init.get("basic_window_low_tokens", 3500),
        max_units=init.get("context_max_units", defaults.max_units),
        previous_max_tokens=init.get("context_previous_max_tokens", defaults.previous_max_tokens),
    )


def _unit(spec: dict[str, Any]) -> list[Segment]:
    segments: list[Segment] = [Marker(Mark.UNIT)]
    limits = spec.get("max_slice_nums", 1)
    for index, frame in enumerate(spec.get("frames", [])):
        limit = limits if isinstance(limits, int) else limits[index]
        segments.append(Image(media.image(frame), max_slices=limit))
    if spec.get("audio") is not None:
        segments.append(Audio(Pcm(media.audio(spec["audio"]), 16000), "live"))
    return segments


def _schema(prompt: Prompt) -> list[Any]:
    """The unit as tags and blocks."""
    names = {"image": "img", "audio": "audio"}
    blocks = {place.start: place for place in prompt.places}
    out: list[Any] = []
    at = 0
    while at < len(prompt.ids):
        if at in blocks:
            out.append([names[blocks[at].kind], blocks[at].count])
            at = blocks[at].end
        else:
            out.append(prompt.ids[at])
            at += 1
    return out
