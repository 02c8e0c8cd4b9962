"""Low-rank fine-tuning of the language model on dialogues; stops and continues at any time.

    python -m training.cascade.finetune --run FOLDER --minutes 20
    python -m training.cascade.finetune --run FOLDER --minutes 5 --anneal

The four-bit weights stay as they came (they are what ships); what is learnt is one pair of thin
matrices per matrix, which ships next to them and is joined with them at load. Rows of a batch are
dialogues packed end to end, each blind to the others. `--anneal` lets the rate fall to nothing and
writes `lora.safetensors`; the run's own state is kept, so training can continue.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from parley.models.cascade.llama import Layer, Llama, LlamaShape, fill
from parley.models.cascade.prompt import CLOSING, opening
from training.cascade.dialogues import Dialogue, draw

RANK = 32
SCALE = 2.0
NAMES = ("qkv", "out", "gate_up", "down")


class Adapted(nn.Module):
    """A frozen matrix with a learnt low-rank addition."""

    def __init__(self, inner: nn.Linear, rank: int = RANK) -> None:
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        low = functional.linear(functional.linear(x, self.a), self.b)
        return self.inner(x) + SCALE * low


def adapt(model: Llama) -> list[nn.Parameter]:
    """Put additions on every matrix; gives what is to be learnt."""
    learnt: list[nn.Parameter] = []
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for name in NAMES:
            added = Adapted(getattr(layer, name))
            setattr(layer, name, added)
            learnt += [added.a, added.b]
    return learnt


def additions(model: Llama) -> dict[str, Tensor]:
    """The learnt matrices under the names of what they add to."""
    found = {}
    for index, layer in enumerate(model.layers):
        for name in NAMES:
            added = getattr(layer, name)
            found[f"layers.{index}.{name}.a"] = added.a.detach().clone()
            found[f"layers.{index}.{name}.b"] = SCALE * added.b.detach().clone()
    return found


def encode(dialogue: Dialogue, words: Tokenizer) -> tuple[list[int], list[bool]]:
    """Ids, and which of them are to be learnt."""
    ids: list[int] = []
    learnt: list[bool] = []

    def add(text: str, is_learnt: bool) -> None:
        new = words.encode(text).ids
        ids.extend(new)
        learnt.extend([is_learnt] * len(new))

    if dialogue.system:
        add(opening("system") + dialogue.system + CLOSING, False)
    for one in dialogue.turns:
        add(opening("user") + one.shown + CLOSING + opening("assistant"), False)
        add(one.answer, True)
        end = words.encode(CLOSING).ids
        ids.extend(end)
        learnt.extend([True] + [False] * (len(end) - 1))
    return ids, learnt


def packed(
    words: Tokenizer, seed: int, length: int, *, held: bool = False
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless rows: ids, whether each is learnt, and the number of its dialogue."""
    r = Random(seed)
    while True:
        ids: list[int] = []
        learnt: list[bool] = []
        owner: list[int] = []
        number = 0
        while True:
            new, which = encode(draw(r, held=held), words)
            if len(new) > length:
                continue
            if len(ids) + len(new) > length:
                break
            ids += new
            learnt += which
            owner += [number] * len(new)
            number += 1
        yield torch.tensor(ids), torch.tensor(learnt), torch.tensor(owner)


def loss_of(model: Llama, row: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy of the learnt tokens."""
    ids, learnt, owner = row
    count = len(ids)
    starts = torch.cat((torch.ones(1, dtype=torch.bool), owner[1:] != owner[:-1]))
    places = torch.arange(count) - torch.cummax(torch.where(starts, torch.arange(count), 0), 0)[0]
    model.waves(0, count)
    cos, sin = model._waves[0][places], model._waves[1][places]
    mask = (owner[:, None] == owner[None]) & torch.ones(count, count, dtype=torch.bool).tril()
    x = model.embed(ids)
    for layer in model.layers:
        assert isinstance(layer, Layer)
        turned, value = model.turned(layer, layer.before(x), cos, sin)
        heads = model.shape.heads
        mixed = functional.scaled_dot_product_attention(
            turned[None, :heads], turned[None, heads:], value[None],
            attn_mask=mask, enable_gqa=True,
        )[0]  # fmt: skip
        x = x + layer.out(mixed.transpose(0, 1).reshape(count, -1))
        gate, up = layer.gate_up(layer.between(x)).chunk(2, -1)
        x = x + layer.down(functional.silu(gate) * up)
    wanted = learnt[1:].nonzero()[:, 0]
    logits = model.norm(x[wanted]) @ model.embed.weight.T
    return functional.cross_entropy(logits, ids[wanted + 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1, help="rows of dialogues per step")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--anneal", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    torch.manual_seed(7)
    run: Path = options.run
    words = Tokenizer.from_file(str(run / "tokenizer.json"))
    model = Llama(LlamaShape())
    fill(model, load_file(run / "llm.safetensors"))
    model._speeds = model._speeds.to(options.device)
    learnt = adapt(model)
    optimizer = torch.optim.AdamW(learnt, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    step = 0
    state = run / "finetune.pt"
    if state.exists():
        kept = torch.load(state, weights_only=True, map_location="cpu")
        for parameter, value in zip(learnt, kept["learnt"], strict=True):
            parameter.data.copy_(value)
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    log = (run / "finetune.jsonl").open("a")
    rows = packed(words, 1000 + step, options.length)
    begun = saved = time.monotonic()
    running = None
    seen = 0
    while (spent := time.monotonic() - begun) < 60 * options.minutes:
        rate = options.rate * min(1.0, (step + 1) / 20)
        if options.anneal:
            rate *= max(0.02, 1 - spent / (60 * options.minutes))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = torch.zeros(())
        for _ in range(options.rows):
            row = next(rows)
            with torch.autocast(options.device, torch.bfloat16, enabled=options.device != "cpu"):
                one = loss_of(model, row) / options.rows
            one.backward()
            loss += one.detach()
            seen += len(row[0])
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if step % 10 == 0:
            held = ""
            if step % 100 == 0:
                with torch.no_grad():
                    held_rows = packed(words, 5, options.length, held=True)
                    held = sum(loss_of(model, next(held_rows)).item() for _ in range(4)) / 4
            line = {
                "step": step,
                "loss": round(running, 4),
                "held": held,
                "tokens_s": round(seen / (time.monotonic() - begun)),
                "s": round(spent),
            }
            log.write(json.dumps(line) + "\n")
            log.flush()
        if time.monotonic() - saved > 120:
            saved = time.monotonic()
            if options.anneal:
                save_file(additions(model), run / "lora.safetensors")
                continue
            _save(run, learnt, optimizer, step, model)
    if not options.anneal:
        _save(run, learnt, optimizer, step, model)
    save_file(additions(model), run / "lora.safetensors")


def _save(
    run: Path, learnt: list[nn.Parameter], optimizer: torch.optim.Optimizer, step: int, model: Llama
) -> None:
    kept = {
        "learnt": [p.detach() for p in learnt],
        "optimizer": optimizer.state_dict(),
        "step": step,
    }
    save_file(additions(model), run / "lora.safetensors")
    torch.save(kept, run / "finetune.pt.new")
    (run / "finetune.pt.new").replace(run / "finetune.pt")


if __name__ == "__main__":
    main()
