"""Teach the voice network from what the teacher read.

    python -m training.cascade.voice features --voice FOLDER      # again and again, while it reads
    python -m training.cascade.voice train --voice FOLDER --run FOLDER --minutes 20

Goes on where it stopped. Every fortieth sentence is kept out.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from pathlib import Path
from random import Random

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from parley.models.cascade.voice.acoustic import (
    APERIODICITY,
    ENVELOPE,
    PITCH_HZ,
    USED,
    VoiceNetwork,
    VoiceShape,
    ids_of,
    spread_out,
)
from parley.models.cascade.voice.synth import BINS, FFT, MEL_LOW, MEL_TOP, RATE_HZ, Floats


@functools.cache
def _analysis_table(count: int) -> tuple[Floats, Floats]:
    """Positions of the mel points among the bins, and the cosine transform (513, C)."""
    points = BINS
    mel = MEL_LOW + (MEL_TOP - MEL_LOW) * np.arange(points) / (points - 1)
    hertz = 700 * (np.exp(mel / 1127.01048) - 1)
    places = np.clip(hertz / RATE_HZ * FFT, 0, BINS - 1)
    n = np.arange(points)[:, None]
    k = np.arange(count)
    table = np.cos(math.pi * (n + 0.5) * k / points) * (2 / points)
    table[:, 0] /= 2
    return places, table


def coefficients(power: Floats, count: int) -> Floats:
    """Power spectra (F, K) to coefficients (F, C)."""
    places, table = _analysis_table(count)
    logs = np.log(np.maximum(power, 1e-12))
    low = np.floor(places).astype(int)
    high = np.minimum(low + 1, BINS - 1)
    part = places - low
    mel = logs[:, low] * (1 - part) + logs[:, high] * part
    result: Floats = mel @ table
    return result


def features(folder: Path) -> None:
    """Pitch, envelope and aperiodicity of everything that was read and not yet analysed."""
    import pyworld

    out = folder / "features"
    out.mkdir(exist_ok=True)
    for path in sorted((folder / "taught").glob("*.npz")):
        target = out / path.name
        if target.exists():
            continue
        try:
            with np.load(path) as taught:
                audio = taught["audio"].astype(np.float64) / 32768
                pitch = taught["pitch"].astype(np.float64)
                frames, sounds, voice = (
                    taught["frames"],
                    str(taught["sounds"]),
                    int(taught["voice"]),
                )
        except (OSError, ValueError, KeyError, EOFError):
            continue
        count = 2 * int(frames.sum())
        pitch = np.pad(pitch, (0, 1))[: count + 1]
        hertz = np.where(pitch > 45, pitch, 0.0)
        times = (np.arange(count) + 0.5) * 0.0125
        hertz = hertz[:count]
        # Where the teacher's pitch runs on through a whisper, the signal decides.
        envelope = pyworld.cheaptrick(audio, hertz, times, RATE_HZ, fft_size=1024)
        noise = pyworld.d4c(audio, hertz, times, RATE_HZ, fft_size=1024, threshold=0.6)
        bands = pyworld.code_aperiodicity(noise, RATE_HZ)
        is_voiced = (hertz > 0) & (bands.mean(1) < -0.5)
        ids = ids_of(sounds)
        if len(ids) != len(frames):
            continue
        np.savez(
            target, ids=np.array(ids, np.int16), frames=2 * frames.astype(np.int16), voice=np.array(voice),
            pitch=np.log(np.maximum(hertz, 45) / PITCH_HZ).astype(np.float32), voiced=is_voiced,
            envelope=coefficients(envelope, ENVELOPE).astype(np.float32), bands=bands.astype(np.float32),
        )  # fmt: skip


def load(folder: Path) -> list[dict[str, Tensor]]:
    """All features."""
    rows = []
    for path in sorted((folder / "features").glob("*.npz")):
        try:
            with np.load(path) as one:
                row = {name: torch.from_numpy(np.asarray(one[name])) for name in one.files}
        except (OSError, ValueError, EOFError):
            continue
        row["ids"], row["frames"] = row["ids"].long(), row["frames"].long()
        row["number"] = torch.tensor(int(path.stem))
        rows.append(row)
    return rows


def train(
    folder: Path, run: Path, minutes: float, rate: float, *, count: int = 4, device: str = "cpu"
) -> None:
    torch.manual_seed(3)
    rows = [{name: one.to(device) for name, one in row.items()} for row in load(folder)]
    kept_out = [row for row in rows if int(row["number"]) % 40 == 7]
    rows = [row for row in rows if int(row["number"]) % 40 != 7]
    state = run / "voice.pt"
    model = VoiceNetwork(VoiceShape())
    kept = torch.load(state, weights_only=True, map_location="cpu") if state.exists() else None
    if kept:
        norm = {name: one.to(device) for name, one in kept["norm"].items()}
    else:
        envelope = torch.cat([row["envelope"] for row in rows])
        bands = torch.cat([row["bands"] for row in rows])
        norm = {"envelope_mean": envelope.mean(0), "envelope_std": envelope.std(0).clamp(min=1e-3),
                "bands_mean": bands.mean(0), "bands_std": bands.std(0).clamp(min=1e-3)}  # fmt: skip
    matrices = [
        p
        for name, p in model.named_parameters()
        if name.endswith(("up.weight", "down.weight", "widen.weight"))
    ]
    others = [p for p in model.parameters() if not any(p is one for one in matrices)]
    optimizer = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    step = 0
    if kept:
        model.load_state_dict(kept["model"])
        if "muon" in kept:
            optimizer.load_state_dict(kept["optimizer"])
            muon.load_state_dict(kept["muon"])
        step = kept["step"]
    log = (run / "voice.jsonl").open("a")
    r = Random(step)
    begun = saved = time.monotonic()
    sums = torch.zeros(5)
    while (spent := time.monotonic() - begun) < 60 * minutes:
        # The rate falls at the end of a call only: calls are short, and follow each other.
        for group in (*optimizer.param_groups, *muon.param_groups):
            group["lr"] = (
                rate
                * min(1, (step + 1) / 100)
                * min(1, max(0.03, 4 * (1 - spent / (60 * minutes))))
            )
        batch = r.sample(rows, min(count, len(rows)))
        losses = torch.stack(loss(model, batch, norm))
        losses.sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        muon.step()
        optimizer.zero_grad(set_to_none=True)
        muon.zero_grad(set_to_none=True)
        step += 1
        sums = 0.95 * sums + 0.05 * losses.detach() if step > 1 else losses.detach()
        if step % 50 == 0:
            with torch.no_grad():
                held = torch.stack(loss(model, kept_out[:12], norm)) if kept_out else sums
            line = {
                "step": step,
                "loss": [round(float(x), 3) for x in sums],
                "held": [round(float(x), 3) for x in held],
                "s": round(spent),
                "rows": len(rows),
            }
            log.write(json.dumps(line) + "\n")
            log.flush()
        if time.monotonic() - saved > 90 or time.monotonic() - begun > 60 * minutes - 1:
            saved = time.monotonic()
            _save(run, model, optimizer, muon, step, norm)
    _save(run, model, optimizer, muon, step, norm)


def _save(
    run: Path,
    model: VoiceNetwork,
    optimizer: torch.optim.Optimizer,
    muon: torch.optim.Optimizer,
    step: int,
    norm: dict[str, Tensor],
) -> None:
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "muon": muon.state_dict(),
            "step": step,
            "norm": norm,
        },
        run / "voice.pt.new",
    )
    (run / "voice.pt.new").replace(run / "voice.pt")
    save_file({**model.state_dict(), **norm}, run / "voice.safetensors")
    (run / "voice.json").write_text(json.dumps({"voices": ["female", "male"]}))


def loss(
    model: VoiceNetwork, batch: list[dict[str, Tensor]], norm: dict[str, Tensor]
) -> list[Tensor]:
    """Length, pitch, voicing, envelope, aperiodicity."""
    voice = torch.stack([row["voice"] for row in batch]).long()
    ids = nn.utils.rnn.pad_sequence([row["ids"] for row in batch], batch_first=True)
    mask = nn.utils.rnn.pad_sequence(
        [torch.ones(len(row["ids"])) for row in batch], batch_first=True
    )[..., None]
    x, lengths = model.read(ids, voice, mask)
    wanted = nn.utils.rnn.pad_sequence(
        [row["frames"].float().clamp(min=1).log() for row in batch], batch_first=True
    )
    duration = ((lengths - wanted).square() * mask[..., 0]).sum() / mask.sum()
    spreads, places = zip(
        *(spread_out(x[n, : len(row["ids"])], row["frames"]) for n, row in enumerate(batch)),
        strict=True,
    )
    spread = nn.utils.rnn.pad_sequence(list(spreads), batch_first=True)
    place = nn.utils.rnn.pad_sequence(list(places), batch_first=True)
    there = nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in spreads], batch_first=True)[
        ..., None
    ]
    heads = model.course(spread, place, voice, there)

    def stacked(name: str) -> Tensor:
        rows = []
        for row, one in zip(batch, spreads, strict=True):
            value = row[name].float()[: len(one)]
            rows.append(
                functional.pad(value, (0, 0) * (value.ndim - 1) + (0, len(one) - len(value)))
            )
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    total = there.sum()
    voiced = stacked("voiced") * there[..., 0]
    pitch = (
        ((heads[..., 0] - stacked("pitch")).square() * voiced).sum()
        / voiced.sum().clamp(min=1)
        * 20
    )
    voicing = (
        functional.binary_cross_entropy_with_logits(
            heads[..., 1], stacked("voiced"), reduction="none"
        )
        * there[..., 0]
    ).sum() / total
    envelope = (stacked("envelope") - norm["envelope_mean"]) / norm["envelope_std"]
    # In decibels, so to speak: what moves the spectrum most counts most; fine ripples are left out.
    weight = (norm["envelope_std"] / norm["envelope_std"][1]).clamp(max=1.5) ** 0.8
    weight = torch.where(torch.arange(ENVELOPE) < USED, weight, torch.zeros(()))
    error = (heads[..., 2 : 2 + ENVELOPE] - envelope).abs() * weight
    bands = (stacked("bands") - norm["bands_mean"]) / norm["bands_std"]
    noise = (heads[..., 2 + ENVELOPE :] - bands).abs()
    return [
        duration,
        pitch,
        voicing,
        (error * there).sum() / total / weight.sum() * 2,
        (noise * there).sum() / total / APERIODICITY * 0.3,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["features", "train"])
    parser.add_argument("--voice", type=Path, required=True)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--rows", type=int, default=4, help="clauses per step")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_device(options.device)
    if options.what == "features":
        features(options.voice)
    else:
        train(
            options.voice, options.run, options.minutes, options.rate,
            count=options.rows, device=options.device,
        )  # fmt: skip


if __name__ == "__main__":
    main()
