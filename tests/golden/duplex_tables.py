"""Cases of section `duplex` that are tables of one choice each."""

import re
from typing import Any

import numpy as np
import torch
from msgspec import structs
from tests.golden import tiny
from tests.golden.case import Case, Checker
from tests.support import rule_weights
from tests.support.choosing import candidates, weighed

from parley.models.minicpmo45.llm.sampling import Ask, Chooser, unit_rule
from parley.protocol.values import DuplexConfig


def _rule(settings: dict[str, Any], case: Case, mode: str = "greedy"):
    words = tiny.words(case.folder)
    base = DuplexConfig(decode_mode="greedy" if mode == "greedy" else "sampling")
    options = structs.replace(base, **settings)
    return unit_rule(options, words.ids, listen_id=words.ids.im_end), options


def decode_table(case: Case, check: Checker) -> None:
    words = tiny.words(case.folder)
    vocabulary = int(tiny.config(case.folder).language.vocab_size)
    chooser = Chooser(words, vocabulary, torch.device("cpu"))
    ids, before = case.json["ids"], case.json["previous_tokens"]
    defaults = case.json.get("defaults", {})
    for index, row in enumerate(case.json["rows"]):
        rule, options = _rule({**defaults, **row["settings"]}, case, case.json["mode"])
        logits = torch.full((1, vocabulary), -9.0)
        logits[0, ids] = torch.tensor(row["values"], dtype=torch.float32)
        seen = before[-options.text_repetition_window_size :]
        (choice,) = chooser.choose(logits, [Ask(rule, seen, 0, 0)])
        check.equal(f"row {index} token", choice.token, row["token"])
        kept = [choice.token] if choice.is_remembered else []
        check.equal(f"row {index} kept", kept, row["generated_after"])


def sampling_table(case: Case, check: Checker) -> None:
    words = tiny.words(case.folder)
    vocabulary = int(tiny.config(case.folder).language.vocab_size)
    chooser = Chooser(words, vocabulary, torch.device("cpu"))
    pattern = re.search(r"uniform\('([^']*)-t'\)", case.json["note"])
    assert pattern is not None
    for index, row in enumerate(case.json["rows"]):
        rule, _ = _rule(row["settings"], case, "sampling")
        logits = torch.full((1, vocabulary), -20.0)
        values = np.float32(6) * rule_weights.uniform(f"{pattern[1]}-{row['t']}", len(row["ids"]))
        for token, value in zip(row["ids"], values.tolist(), strict=True):
            logits[0, token] = value
        scores = weighed(chooser, logits, [Ask(rule, row["previous_tokens"], 0, 0)])
        kept, ids = candidates(scores, [rule])
        probabilities = torch.softmax(kept, -1)[0]
        found = {
            int(token): float(p)
            for token, p in zip(ids[0], probabilities, strict=True)
            if float(p) > 0
        }
        check.equal(f"row {index} kept", sorted(found), row["kept_ids"])
        if sorted(found) == row["kept_ids"]:
            check.close(f"row {index}", [found[token] for token in row["kept_ids"]], row["probs"])
        best = max(found, key=lambda token: found[token])
        check.equal(f"row {index} best", best, row["argmax_token"])
