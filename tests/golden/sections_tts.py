"""Golden section `tts`: the speech-token decoder.

`run_case(root, "tts", case)` returns the differences of one case, empty when it passes. `root` is
any folder of the layout that the README of the golden vectors describes; every input comes from the
case's files, nothing is assumed about which cases exist. Names that rules refer to ("uniform(...)")
are parsed out of the files' own text.

`teacher_forcing_speech` is checked from the recorded decoder input on (speech tokens, vocoder
pieces, samples); the text half of that case belongs to the section of the whole model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.differences import Differences
from tests.support.rule_weights import shaped, uniform, weight
from torch import Tensor

from parley.models.minicpmo45.speech import BlockRule, Fed, MiniCPMTTS, SpeechBlock, SpeechConfig
from parley.models.minicpmo45.speech_buffer import utterance_windows
from parley.models.minicpmo45.speech_sampling import (
    RowRules,
    SpeechSampling,
    kept_candidates,
    penalised,
)
from parley.models.minicpmo45.speech_turns import (
    UTTERANCE_MINIMUM,
    Interleaved,
    SpokenTurn,
    SpokenUnits,
    Utterance,
)

SECTION = "tts"

Arrays = Mapping[str, np.ndarray]


def run_case(root: Path, section: str, case: str) -> list[str]:
    """Differences between our decoder and a recorded case."""
    folder = root / section
    facts = json.loads((folder / f"{case}.json").read_text(encoding="utf-8"))
    arrays: Arrays = {}
    if (folder / f"{case}.npz").is_file():
        with np.load(folder / f"{case}.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
    found = Differences()
    with torch.inference_mode():
        _handler(case)(root, facts, arrays, found)
    return found.lines


def cases(root: Path, section: str = SECTION) -> list[str]:
    """Names of the cases in a folder."""
    return sorted(path.stem for path in (root / section).glob("*.json"))


Handler = Callable[[Path, Mapping[str, Any], Arrays, Differences], None]


def _handler(case: str) -> Handler:
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
        if case.startswith(prefix):
            return handler
    raise ValueError(f"no handler for case {case!r}")


@lru_cache(maxsize=2)
def decoder(root: Path) -> MiniCPMTTS:
    """The tiny decoder of a folder's `config.json`, with rule-made weights and one slot."""
    raw = json.loads((root / "config.json").read_text(encoding="utf-8"))
    tts = MiniCPMTTS(SpeechConfig.from_json(raw["tts_config"], llm_width=raw["hidden_size"]))
    tts.load_state_dict(
        {
            name: torch.from_numpy(weight(f"tts.{name}", tuple(tensor.shape)))
            for name, tensor in tts.state_dict().items()
        }
    )
    tts.rebuild_buffers()
    tts.allocate(1)
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
    """Argmax with a case's temperature and penalty."""
    return SpeechSampling(
        temperature=float(settings.get("temperature", 0.8)),
        repetition_penalty=float(settings.get("repetition_penalty", 1.05)),
        top_p=float(settings.get("top_p", 1.0)),
        top_k=int(settings.get("top_k", 0)),
        is_greedy=True,
    )


def finish(tts: MiniCPMTTS, block: SpeechBlock) -> list[Fed]:
    """Run a block to its end, noting every pass."""
    seen: list[Fed] = []
    while not block.finished:
        tts.step([block], watch=seen.append)
    return seen


def _inputs(root: Path, facts: Mapping[str, Any]) -> tuple[list[int], Tensor]:
    rules = facts["input"]
    ids = rules["ids"] if isinstance(rules["ids"], list) else ids_of(rules["ids"])
    return ids, hidden_of(rules["hidden"], len(ids), decoder(root).config.llm_width)


def _condition(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    tts = decoder(root)
    ids, hidden = _inputs(root, facts)
    found.same("text_ids", ids, arrays["text_ids"])
    for name, normalize in (("condition_normalized", True), ("condition_plain", False)):
        found.close(name, tts.condition(ids, hidden, normalize=normalize), arrays[name])
    found.close("audio_bos", tts.audio_bos, arrays["audio_bos"])
    found.close("text_eos", tts.text_eos, arrays["text_eos"])


def _utterance(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    """The condition is that of the case named in `input`, found beside this one."""
    tts = decoder(root)
    with np.load(root / SECTION / "condition.npz") as stored:
        rows = torch.from_numpy(stored["condition_normalized"])
    settings = facts["settings"]
    speech = Utterance(tts, tts.open(0, 0), greedy(settings))
    block = speech.begin(rows, min_new=settings["min_new_token"], max_new=settings["max_new_token"])
    seen = finish(tts, block)
    found.same("tokens", block.tokens, arrays["tokens"])
    found.same("finished", block.ended, facts["finished"])
    if "first_hidden" in arrays:
        found.close("first_hidden", seen[0].hidden, arrays["first_hidden"])
    for name in arrays:
        limit = re.fullmatch(r"tokens_no_stop_max(\d+)", name)
        if limit:
            most = int(limit.group(1))
            block = speech.begin(rows, min_new=most, max_new=most)
            finish(tts, block)
            found.same(name, block.tokens, arrays[name])


def _units(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    tts = decoder(root)
    row = tts.open(0, 0)
    speech = SpokenUnits(tts, row, greedy(facts))
    for number, unit in enumerate(facts["chunks"]):
        ids = unit["text_ids"]
        rows = None
        if ids:
            hidden = hidden_of(unit["hidden"], len(ids), tts.config.llm_width)
            rows = tts.condition(ids, hidden, normalize=True)
        ends_turn = row.position > 0 and unit["min_new_tokens"] == 0
        block = speech.begin(rows, ends_turn=ends_turn, max_new=unit["max_new_token"])
        seen = finish(tts, block)
        found.same(f"unit {number} min_new", block.rule.min_new, unit["min_new_tokens"])
        found.same(f"tokens{number}", block.tokens, arrays[f"tokens{number}"])
        name = f"first_hidden{number}"
        found.close(name, seen[0].hidden, arrays[name])
        found.same(f"unit {number} position", row.position, unit["text_start_pos_after"])
        found.same(f"unit {number} columns", row.columns, unit["cache_len_after"])
        # The recorded loop never resets, so that its counters can be read after every unit.
        speech.ends_turn = False
        speech.end(block)


def _stream(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    tts = decoder(root)
    row = tts.open(0, 0)
    speech = SpokenTurn(
        tts,
        row,
        greedy(facts["settings"]),
        attention=facts["attention_type"],
        yield_tokens=facts["chunk_size"],
        window=facts["token_window"],
        block_limit=facts["max_new_token_per_call"],
    )
    for number, chunk in enumerate(facts["chunks"]):
        ids = chunk["text_ids"]
        hidden = hidden_of(chunk["hidden"], len(ids), tts.config.llm_width)
        block = speech.begin(tts.condition(ids, hidden), is_last=chunk["text_finished"])
        seen = finish(tts, block)
        ready = speech.end(block)
        here = f"block {number}"
        found.same(f"new_tokens{number}", block.tokens, arrays[f"new_tokens{number}"])
        yields = [{"tokens": part.tokens, "last": part.is_last} for part in ready]
        found.same(f"{here} yields", yields, chunk["yields"])
        found.same(f"{here} position", row.position, chunk["text_start_pos"])
        found.same(f"{here} columns", row.columns, chunk["cache_len"])
        found.same(f"{here} waiting", len(speech.waiting), chunk["buffer_left"])
        passes = [[fed.count, fed.start, fed.start + fed.count - 1, fed.columns] for fed in seen]
        found.same(f"positions{number}", passes, arrays[f"positions{number}"])
        hidden_rows = torch.stack([fed.hidden for fed in seen])[::8]
        name = f"hidden{number}_every8"
        found.close(name, hidden_rows, arrays[name])


def _interleaved(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    found.same("error", None, facts["error"])
    tts = decoder(root)
    row = tts.open(0, 0)
    speech = Interleaved(
        tts,
        row,
        greedy(facts),
        attention=facts["attention_type"],
        window_blocks=facts["window_size"],
        recomputed_blocks=facts["recomputed_chunks"],
        block_limit=facts["max_new_token_per_chunk"],
    )
    spoken: list[int] = []
    for number, chunk in enumerate(facts["chunks"]):
        ids = chunk["text_ids"]
        hidden = hidden_of(chunk["hidden"], len(ids), tts.config.llm_width)
        block = speech.begin(tts.condition(ids, hidden), is_last=chunk["text_eos"])
        start = row.position
        finish(tts, block)
        call = facts["calls"][number]
        found.same(f"block {number} rows", len(block.condition), call["condition_len"])
        found.same(f"block {number} position", start, call["text_start_pos"])
        found.same(f"block {number} tokens", block.tokens, call["tokens"])
        spoken += speech.end(block)
    found.same("tokens", spoken, arrays["tokens"])


def _filters(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    """One batch per table, as rows with different rules share a step in service."""
    match = re.match(r"logits = ([\d.]+)\*uniform\('([^']+)-t'\)", facts["note"])
    if match is None:
        raise ValueError(f"cannot read the rule {facts['note']!r}")
    factor, name = np.float32(match.group(1)), match.group(2)
    table = facts["rows"]
    codes = decoder(root).config.codes
    logits = torch.stack(
        [torch.from_numpy(factor * uniform(f"{name}-{r['t']}", codes)) for r in table]
    )
    rules = RowRules.of(
        [SpeechSampling(0.8, r["repetition_penalty"], r["top_p"], r["top_k"]) for r in table],
        codes,
        torch.device("cpu"),
    )
    history = torch.tensor([([-1] * 16 + r["history"])[-16:] for r in table])
    shaped_logits = penalised(logits / 0.8, history, rules.penalty)
    best, places = kept_candidates(shaped_logits, rules)
    for number, row in enumerate(table):
        kept = torch.isfinite(best[number])
        ids, shares = places[number][kept], torch.softmax(best[number], -1)[kept]
        order = ids.argsort()
        found.same(f"row {number} kept_ids", ids[order], row["kept_ids"])
        if len(ids) == len(row["probs"]):
            found.close(f"row {number} probs", shares[order], row["probs"], atol=1e-5)


def _forced(root: Path, facts: Mapping[str, Any], arrays: Arrays, found: Differences) -> None:
    tts = decoder(root)
    rule = BlockRule(
        UTTERANCE_MINIMUM, facts["max_new_token"], True, True, greedy({"top_p": 0.85, "top_k": 25})
    )
    row = tts.open(0, 0)
    block = SpeechBlock(row, torch.from_numpy(arrays["tts_inputs"]), rule)
    finish(tts, block)
    found.same("speech_tokens", block.tokens, arrays["speech_tokens"])
    pieces = [
        {"tokens": list(window.tokens), "last_chunk": window.is_last}
        for window in utterance_windows(block.tokens)
    ]
    found.same("token2wav_calls", pieces, facts["token2wav_calls"])
    found.same("wave_samples", 960 * len(block.tokens), facts["wave_samples"])


HANDLERS = {SECTION: run_case}
"""Section name to handler, for the runner."""
