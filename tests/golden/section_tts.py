"""Section `tts`: the speech-token decoder.

Every input comes from the case's own files; names that rules refer to ("uniform(...)") are parsed
out of their text, so a folder with other inputs works as well."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.golden import tiny
from tests.golden.case import Case, Checker
from tests.golden.section_chat import Straight
from tests.golden.section_prompts import read
from tests.golden.talking import windows_of
from tests.support.interleaved import Interleaved
from tests.support.rule_weights import shaped, uniform, weight
from tests.support.states import PassRecord, passes_of
from torch import Tensor

from parley.models.minicpmo45.token2wav.windows import utterance_windows
from parley.models.minicpmo45.tts.config import SpeechConfig
from parley.models.minicpmo45.tts.decoder import MiniCPMTTS
from parley.models.minicpmo45.tts.rows import SpeechBlock
from parley.models.minicpmo45.tts.sampling import (
    RowRules,
    SpeechSampling,
    kept_candidates,
    penalised,
)
from parley.models.minicpmo45.tts.turns import SpokenTurn, SpokenUnits, whole_utterance


def run(case: Case, check: Checker) -> None:
    """Compare our decoder with a recorded case."""
    with torch.inference_mode():
        _handler(case.name)(case, check)


Handler = Callable[[Case, Checker], None]


def _handler(name: str) -> Handler:
    known: dict[str, Handler] = {
        "condition": _condition,
        "generate_chunk": _units,
        "generate": _utterance,
        "stream": _stream,
        "interleaved": _interleaved,
        "filter_table": _filters,
        "teacher_forcing_speech": _forced,
    }
    for prefix, handler in known.items():
        if name.startswith(prefix):
            return handler
    raise ValueError(f"nothing here knows the case {name!r}")


def decoder(root: Path) -> MiniCPMTTS:
    """The tiny decoder of a folder's `config.json`, with rule-made weights and one slot."""
    return _decoder(root, tiny.PRECISION)


@lru_cache(maxsize=2)
def _decoder(root: Path, precision: tiny.Precision) -> MiniCPMTTS:
    raw = json.loads((root / "config.json").read_text(encoding="utf-8"))
    tts = MiniCPMTTS(SpeechConfig.from_json(raw["tts_config"], llm_width=raw["hidden_size"]))
    tts.load_state_dict(
        {
            name: torch.from_numpy(weight(f"tts.{name}", tuple(tensor.shape)))
            for name, tensor in tts.state_dict().items()
        }
    )
    tts.to(device=precision.device, dtype=precision.dtype)
    tts.rebuild_buffers(torch.device(precision.device))
    tts.allocate(1, is_eight_bit=precision.has_small_caches)
    return tts


def hidden_of(rule: str, rows: int, width: int) -> Tensor:
    """Hidden states of a rule such as "1.5*uniform('name') shaped [13,256]"."""
    match = re.match(r"\s*(?:([\d.]+)\s*\*\s*)?uniform\('([^']+)'\)", rule)
    if match is None:
        raise ValueError(f"cannot read the rule {rule!r}")
    factor = np.float32(match.group(1) or 1)
    return torch.from_numpy(factor * shaped(match.group(2), (rows, width)))


def ids_of(rule: str) -> list[int]:
    """Ids of a rule such as "floor((uniform('name')+1)/2*151000), 13 of them"."""
    match = re.match(r"floor\(\(uniform\('([^']+)'\)\+1\)/2\*(\d+)\), (\d+) of them", rule)
    if match is None:
        raise ValueError(f"cannot read the rule {rule!r}")
    values = uniform(match.group(1), int(match.group(3))).astype(np.float64)
    return [int(v) for v in np.floor((values + 1) / 2 * int(match.group(2)))]


def greedy(settings: Mapping[str, Any]) -> SpeechSampling:
    """Argmax with a case's penalty."""
    return SpeechSampling(
        temperature=0.0,
        repetition_penalty=float(settings.get("repetition_penalty", 1.05)),
        top_p=float(settings.get("top_p", 1.0)),
        top_k=int(settings.get("top_k", 0)),
    )


def finish(tts: MiniCPMTTS, block: SpeechBlock) -> list[PassRecord]:
    """Run a block to its end, noting every pass."""
    with passes_of(tts, block.row) as seen:
        while not block.finished:
            tts.step([block])
    return seen


def _inputs(case: Case) -> tuple[list[int], Tensor]:
    rules = case.json["input"]
    ids = rules["ids"] if isinstance(rules["ids"], list) else ids_of(rules["ids"])
    return ids, hidden_of(rules["hidden"], len(ids), decoder(case.folder).config.llm_dim)


def _condition(case: Case, check: Checker) -> None:
    tts = decoder(case.folder)
    ids, hidden = _inputs(case)
    check.equal("text_ids", ids, case.arrays["text_ids"])
    for name, normalize in (("condition_normalized", True), ("condition_plain", False)):
        check.close(name, tts.condition(ids, hidden, normalize=normalize), case.arrays[name])
    check.close("audio_bos", tts.audio_bos, case.arrays["audio_bos"])
    check.close("text_eos", tts.text_eos, case.arrays["text_eos"])


def _utterance(case: Case, check: Checker) -> None:
    """The condition is that of the case of that name with the same suffix, or the plain one."""
    tts = decoder(case.folder)
    folder, suffix = case.folder / case.section, case.name.removeprefix("generate")
    named = folder / f"condition{suffix}.npz"
    with np.load(named if named.is_file() else folder / "condition.npz") as stored:
        rows = torch.from_numpy(stored["condition_normalized"]).to(tts.audio_bos)
    settings = case.json["settings"]
    row, sampling = tts.open(0, 0), greedy(settings)
    least, most = settings["min_new_token"], settings["max_new_token"]
    block = whole_utterance(tts, row, rows, sampling, min_new=least, max_new=most)
    seen = finish(tts, block)
    check.equal("tokens", block.tokens, case.arrays["tokens"])
    check.equal("finished", block.ended, case.json["finished"])
    if "first_hidden" in case.arrays:
        check.close("first_hidden", seen[0].hidden, case.arrays["first_hidden"])
    for name in case.arrays:
        limit = re.fullmatch(r"tokens_no_stop_max(\d+)", name)
        if limit:
            most = int(limit.group(1))
            block = whole_utterance(tts, row, rows, sampling, min_new=most, max_new=most)
            finish(tts, block)
            check.equal(name, block.tokens, case.arrays[name])


def _units(case: Case, check: Checker) -> None:
    tts = decoder(case.folder)
    row = tts.open(0, 0)
    speech = SpokenUnits(tts, row, greedy(case.json))
    for number, unit in enumerate(case.json["chunks"]):
        ids = unit["text_ids"]
        rows = None
        if ids:
            hidden = hidden_of(unit["hidden"], len(ids), tts.config.llm_dim)
            rows = tts.condition(ids, hidden, normalize=True)
        ends_turn = row.position > 0 and unit["min_new_tokens"] == 0
        block = speech.begin(rows, ends_turn=ends_turn, max_new=unit["max_new_token"])
        seen = finish(tts, block)
        check.equal(f"unit {number} min_new", block.rule.min_new, unit["min_new_tokens"])
        check.equal(f"tokens{number}", block.tokens, case.arrays[f"tokens{number}"])
        name = f"first_hidden{number}"
        check.close(name, seen[0].hidden, case.arrays[name])
        check.equal(f"unit {number} position", row.position, unit["text_start_pos_after"])
        check.equal(f"unit {number} columns", row.columns, unit["cache_len_after"])
        # The recorded loop never resets, so that its counters can be read after every unit.
        speech.ends_turn = False
        speech.end(block)


def _stream(case: Case, check: Checker) -> None:
    tts = decoder(case.folder)
    row = tts.open(0, 0)
    speech = SpokenTurn(
        tts,
        row,
        greedy(case.json["settings"]),
        attention=case.json["attention_type"],
        window=case.json["token_window"],
        block_limit=case.json["max_new_token_per_call"],
    )
    waiting: list[int] = []
    for number, chunk in enumerate(case.json["chunks"]):
        ids = chunk["text_ids"]
        hidden = hidden_of(chunk["hidden"], len(ids), tts.config.llm_dim)
        block = speech.begin(tts.condition(ids, hidden), is_last=chunk["text_finished"])
        seen = finish(tts, block)
        waiting += speech.end(block)
        here = f"block {number}"
        check.equal(f"new_tokens{number}", block.tokens, case.arrays[f"new_tokens{number}"])
        is_over = block.ended and chunk["text_finished"]
        yields = yielded(waiting, case.json["chunk_size"], is_over=is_over)
        check.equal(f"{here} yields", yields, chunk["yields"])
        check.equal(f"{here} position", row.position, chunk["text_start_pos"])
        check.equal(f"{here} columns", row.columns, chunk["cache_len"])
        check.equal(f"{here} waiting", len(waiting), chunk["buffer_left"])
        passes = [[fed.count, fed.start, fed.start + fed.count - 1, fed.columns] for fed in seen]
        check.equal(f"positions{number}", passes, case.arrays[f"positions{number}"])
        hidden_rows = torch.stack([fed.hidden for fed in seen])[::8]
        name = f"hidden{number}_every8"
        check.close(name, hidden_rows, case.arrays[name])


def yielded(waiting: list[int], count: int, *, is_over: bool) -> list[dict[str, Any]]:
    """Take what the published generator hands out together: `count` tokens, or the rest of all."""
    yields: list[dict[str, Any]] = []
    while len(waiting) >= count:
        yields.append({"tokens": waiting[:count], "last": False})
        del waiting[:count]
    if is_over:
        yields.append({"tokens": waiting[:], "last": True})
        waiting.clear()
    return yields


def _interleaved(case: Case, check: Checker) -> None:
    tts = decoder(case.folder)
    row = tts.open(0, 0)
    speech = Interleaved(
        tts,
        row,
        greedy(case.json),
        attention=case.json["attention_type"],
        window_blocks=case.json["window_size"],
        recomputed_blocks=case.json["recomputed_chunks"],
        block_limit=case.json["max_new_token_per_chunk"],
    )
    spoken: list[int] = []
    # Where the public code failed, only the calls before that are recorded.
    recorded = zip(case.json["chunks"], case.json["calls"], strict=case.json["error"] is None)
    for number, (chunk, call) in enumerate(recorded):
        ids = chunk["text_ids"]
        hidden = hidden_of(chunk["hidden"], len(ids), tts.config.llm_dim)
        block = speech.begin(tts.condition(ids, hidden), is_last=chunk["text_eos"])
        start = row.position
        finish(tts, block)
        check.equal(f"block {number} rows", len(block.condition), call["condition_len"])
        check.equal(f"block {number} position", start, call["text_start_pos"])
        check.equal(f"block {number} tokens", block.tokens, call["tokens"])
        spoken += speech.end(block)
    if case.json["error"] is None:
        check.equal("tokens", spoken, case.arrays["tokens"])


def _filters(case: Case, check: Checker) -> None:
    """One batch per table, as rows with different rules share a step in service."""
    match = re.match(r"logits = ([\d.]+)\*uniform\('([^']+)-t'\)", case.json["note"])
    if match is None:
        raise ValueError(f"cannot read the rule {case.json['note']!r}")
    factor, name = np.float32(match.group(1)), match.group(2)
    table = case.json["rows"]
    codes = decoder(case.folder).config.num_audio_tokens
    logits = torch.stack(
        [torch.from_numpy(factor * uniform(f"{name}-{r['t']}", codes)) for r in table]
    )
    rules = RowRules.of(
        [SpeechSampling(0.8, r["repetition_penalty"], r["top_p"], r["top_k"]) for r in table],
        codes,
        torch.device("cpu"),
    )
    history = torch.tensor([([-1] * 16 + r["history"])[-16:] for r in table])
    shaped_logits = penalised(logits / 0.8, history, rules.numbers[:, 1:2])
    best, places = kept_candidates(shaped_logits, rules)
    for number, row in enumerate(table):
        kept = torch.isfinite(best[number])
        ids, shares = places[number][kept], torch.softmax(best[number], -1)[kept]
        order = ids.argsort()
        check.equal(f"row {number} kept_ids", ids[order], row["kept_ids"])
        if len(ids) == len(row["probs"]):
            check.close(f"row {number} probs", shares[order], row["probs"], 1e-5)


def _forced(case: Case, check: Checker) -> None:
    """A given answer, from the request to the vocoder's pieces: one text token is generated, and
    what stands between the speech tags is spoken."""
    tts = decoder(case.folder)
    given = case.json["input"]
    request = read(case, given["msgs"], given["chat_args"], answer=False)
    embeds = request.embeds(case)
    llm = tiny.network(case.folder).llm
    hidden = Straight(llm, len(embeds)).feed(embeds)
    words = tiny.words(case.folder)
    first = int(llm.logits(hidden[-1:])[0].argmax())
    check.equal("answer", words.decode([first]), case.json["answer"])

    ids = list(request.prompt.ids)
    begin = len(ids) - ids[::-1].index(words.ids.tts_bos)
    end = len(ids) - 1 - ids[::-1].index(words.ids.tts_eos)
    rows = tts.condition(ids[begin:end], hidden[begin:end])
    sampling, most = greedy({"top_p": 0.85, "top_k": 25}), case.json["max_new_token"]
    block = whole_utterance(tts, tts.open(0, 0), rows, sampling, max_new=most)
    check.close("tts_inputs", block.condition, case.arrays["tts_inputs"])
    finish(tts, block)
    check.equal("speech_tokens", block.tokens, case.arrays["speech_tokens"])
    windows = windows_of(utterance_windows(block.tokens))
    check.equal("token2wav_calls", windows, case.json["token2wav_calls"])
    check.equal("wave_samples", 960 * len(block.tokens), case.json["wave_samples"])
