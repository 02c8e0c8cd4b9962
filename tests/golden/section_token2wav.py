"""Section `token2wav`: flow and both vocoders.

Every input comes from the case's own files, so a folder with other tokens, prompts or piece lengths
works as well. Noise tables are replaced as the files say; the classic vocoder's is zero.

How far a wave may be off: a vocoder sums its pitch up over the wave, and the pitch follows the mel;
the last bits of either turn the ninth harmonic by hundredths of a radian. Between float32 and
float64 the recorded waves themselves move by about 0.01 (the pitch by 1e-4 Hz, the mel by 1e-5). So
a vocoder is compared strictly from what was recorded before it (the classic one from the pitch, the
causal one, which computes pitch in float64, from the mel), and end to end with `PITCH_SLACK`.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.golden.case import TOLERANCE, Case, Checker
from tests.support.rule_weights import shaped, weight
from torch import Tensor
from torch.nn import functional as F

from parley.models.minicpmo45.token2wav.conformer import AttentionHistory, Past
from parley.models.minicpmo45.token2wav.estimator import Places, Schedule
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_memory import FlowMemory, FlowRow, FlowStep
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.token2wav.vocoder import OVERLAP_SAMPLES, ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_causal import PITCH_AHEAD, CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import make_flow, make_vocoder
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.token2wav.windows import VocoderWindow

PITCH_SLACK = 0.05

Handler = Callable[[Case, Checker], None]


def run(case: Case, check: Checker) -> None:
    """Compare our vocoder with a recorded case."""
    known: dict[str, Handler] = {
        "flow_encoder": _encoder,
        "flow_offline": _offline,
        "hift": _classic,
        "causal_vocoder": _causal,
        "stream_hift": _stream,
        "stream_causal": _stream,
    }
    for prefix, handler in known.items():
        if case.name.startswith(prefix):
            with torch.inference_mode():
                handler(case, check)
            return
    raise ValueError(f"nothing here knows the case {case.name!r}")


@cache
def _tensors(folder: Path, part: str) -> dict[str, Tensor]:
    shapes = json.loads((folder / "token2wav_config.json").read_text(encoding="utf-8"))["tensors"]
    return {
        name.removeprefix(f"{part}."): torch.from_numpy(weight(f"t2w.{name}", shape))
        for name, shape in shapes.items()
        if name.startswith(f"{part}.")
    }


def _flow(case: Case) -> Flow:
    flow = make_flow(_tensors(case.folder, "flow"))
    if "rand_noise" in case.json["input"]:
        flow.noise = rule(case.json["input"]["rand_noise"])
    return flow


def _vocoder(case: Case, *, is_causal: bool) -> ClassicVocoder | CausalVocoder:
    vocoder = make_vocoder(_tensors(case.folder, "causal" if is_causal else "hift"))
    if isinstance(vocoder, CausalVocoder):
        text = case.json.get("noise_table", "uniform('t2w.causal_noise') shaped [24000,9]")
        vocoder.noise = rule(text)
    else:
        vocoder.noise = torch.zeros(24_000, 9)
    return vocoder


def rule(text: str) -> Tensor:
    """Numbers of a rule such as "2*uniform('name') shaped [60,80], ..."."""
    match = re.match(r"(?:([\d.]+|sqrt\(3\))\*)?uniform\('([^']+)'\) shaped \[([\d, ]+)\]", text)
    if match is None:
        raise ValueError(f"cannot read the rule {text!r}")
    factor, name, sizes = match.groups()
    number = math.sqrt(3) if factor == "sqrt(3)" else float(factor or 1)
    shape = [int(size) for size in sizes.split(",")]
    return torch.from_numpy(np.float32(number) * shaped(name, shape))


def cut(wave: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The first 400 samples, then every 23rd."""
    samples = np.asarray(wave).reshape(-1)
    return np.concatenate([samples[:400], samples[400::23]])


def _encoder(case: Case, check: Checker) -> None:
    flow, arrays = _flow(case), case.arrays
    given = case.json["input"]
    tokens = given["prompt_tokens"] + given["generated_tokens"]
    ids = torch.tensor([tokens])
    whole = flow.encoder(flow.input_embedding(ids), is_last=True, history=_nothing(flow)).frames
    check.equal("frames", whole.shape[1], case.json["frames"])
    check.close("encoder_every3", whole[0, ::3], arrays["encoder_every3"])
    check.close("mu_every3", flow.encoder_proj(whole)[0, ::3], arrays["mu_every3"])
    _pieces(case, check, flow, tokens)


def _pieces(case: Case, check: Checker, flow: Flow, tokens: list[int]) -> None:
    """The recorded pieces run without trimming; their lengths are in the note and the arrays."""
    history = _nothing(flow)
    taken = 0
    names = [name for name in case.arrays if name.startswith("chunk")]
    names.sort(key=lambda name: int(re.sub(r"\D", "", name)))
    for name in names:
        wanted = case.arrays[name]
        is_last = name.endswith("_last")
        count = wanted.shape[0] // 2
        piece = tokens[taken : taken + count + (0 if is_last else 3)]
        x = flow.input_embedding(torch.tensor([piece]))
        made = flow.encoder(x, is_last=is_last, history=history)
        check.close(name, made.frames[0], wanted)
        token_entries = torch.cat([history.tokens.entries, made.token_entries], dim=4)
        frame_entries = torch.cat([history.frames.entries, made.frame_entries], dim=4)
        taken += count
        tokens_past, frames_past = (
            Past(entries, torch.tensor([entries.shape[4]]), slice(None))
            for entries in (token_entries, frame_entries)
        )
        history = AttentionHistory(tokens_past, frames_past, made.left, made.up)
    if not taken:
        check.note("no pieces were recorded")
        return
    # The published caches join both rates and both convolutions; ours are apart.
    layers = history.tokens.entries.shape[1] + history.frames.entries.shape[1]
    heads, columns, width = history.frames.entries.shape[3:]
    check.equal("att_cache", [layers, 1, heads, columns, 2 * width], case.json["att_cache"])
    frames = history.left.shape[1] + history.up.shape[1]
    check.equal("cnn_cache", [1, history.left.shape[2], frames], case.json["cnn_cache"])


def _nothing(flow: Flow) -> AttentionHistory:
    """What the encoder remembers before a first piece."""
    memory = FlowMemory(flow, 1, steps=1, places=0, columns=0)
    return memory.history(slice(None), torch.zeros(1, 2, dtype=torch.long), (0, 0))


def _whole_mel(
    flow: Flow, tokens: Sequence[int], embedding: Tensor, prompt: Tensor, schedule: Schedule
) -> Tensor:
    """A mel of speech, float32, shape (80, 2 n - P), in one piece with its prompt.

    Args:
        tokens: prompt tokens, then what is said.
        embedding: the voice's 192 numbers.
        prompt: the prompt's mel, shape (P, 80).
    """
    frames = 2 * len(tokens)
    memory = FlowMemory(flow, 1, steps=schedule.count, places=frames, columns=0)
    memory.rows[0] = FlowRow(speaker=flow.speaker(embedding))
    given = F.pad(prompt, (0, 0, 0, frames - len(prompt)))[None].to(memory.left)
    ids = [[max(0, token) for token in tokens]]
    step = flow.advance(memory, [0], ids, schedule, is_last=True, prompt=given)
    return step.mel[0, :, len(prompt) :]


def _offline(case: Case, check: Checker) -> None:
    flow, arrays = _flow(case), case.arrays
    given = case.json["input"]
    voice = rule(given["speaker"])
    check.close("speaker_affine", flow.speaker(voice), arrays["speaker_affine"])

    match = re.search(r"uniform\(([^)]*)\) shaped \[(\d+),(\d+)\], t=([\d.]+)", given["estimator"])
    if match is None:
        check.note(f"cannot read the rule {given['estimator']!r}")
        return
    names = re.findall(r"'([^']+)'", match.group(1))
    shape = (int(match.group(2)), int(match.group(3)))
    x, mu, prompt = (torch.from_numpy(shaped(name, shape)).T[None] for name in names)
    estimator = flow.estimator
    frames = x.shape[1]
    memory = FlowMemory(flow, 1, steps=1, places=frames, columns=0).step(0)
    mask = torch.ones(2, 1, 1, frames, dtype=torch.bool)
    places = Places(torch.tensor([0]), 0, torch.arange(frames)[None], mask, frames)
    velocity, _ = estimator(
        x,
        estimator.conditions(mu, flow.speaker(voice)[None], prompt),
        estimator.modulation(torch.tensor([float(match.group(4))])),
        memory,
        places,
    )
    check.close("estimator", velocity[0, 0].T, arrays["estimator"])

    tokens = given["prompt_tokens"] + given["generated_tokens"]
    for name, wanted in case.json.items():
        steps = re.fullmatch(r"mel(\d+)", name)
        if steps is None:
            continue
        schedule = flow.schedule(int(steps.group(1)))
        mel = _whole_mel(flow, tokens, voice, rule(given["prompt_mel"]), schedule)
        check.summary(name, mel[None], wanted)
        check.close(f"{name}_every3", mel[:, ::3], arrays[f"{name}_every3"])


def _classic(case: Case, check: Checker) -> None:
    vocoder, arrays = _vocoder(case, is_causal=False), case.arrays
    assert isinstance(vocoder, ClassicVocoder)
    mel = torch.from_numpy(arrays["mel"])[None]
    pitch = vocoder.f0_predictor(mel)
    check.close("f0", pitch[0], arrays["f0"])
    voiced = float((pitch > 10).float().mean())
    check.close("voiced_fraction", voiced, case.json["voiced_fraction"])
    noise = vocoder.noise_from([0], 480 * mel.shape[2])
    source = vocoder.source(torch.from_numpy(arrays["f0"])[None], noise)
    check.close("source", cut(source), arrays["source"])
    wave = vocoder.decode(mel, source)
    check.close("wave", cut(wave), arrays["wave"])
    check.summary("wave", wave, case.json["wave"])
    clipped = float((wave.abs() >= 0.99 - 1e-6).float().mean())
    check.close("clipped_fraction", clipped, case.json["clipped_fraction"])
    streamed, _ = vocoder.stream([vocoder.row()], mel, is_last=True)
    check.close("wave end to end", cut(streamed), arrays["wave"], PITCH_SLACK)


def _causal(case: Case, check: Checker) -> None:
    vocoder, arrays = _vocoder(case, is_causal=True), case.arrays
    assert isinstance(vocoder, CausalVocoder)
    mel = torch.from_numpy(arrays["mel"])[None]
    check.close("f0", vocoder.pitch(F.pad(mel, (0, PITCH_AHEAD)))[0], arrays["f0"])
    row, at = vocoder.row(), 0
    pieces = case.json["chunks"]
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        part = mel[:, :, at : at + piece["frames"]]
        wave, (row,) = vocoder.stream([row], part, is_last=is_last)
        at += piece["frames"]
        check.equal(f"samples {number}", wave.shape[1], piece["samples"])
        check.equal(f"mel cache {number}", row.mel.shape[1], piece["mel_cache"])
        check.equal(f"source cache {number}", row.source.shape[0], piece["source_cache"])
        check.close(f"wave{number}", cut(wave), arrays[f"wave{number}"])


def _stream(case: Case, check: Checker) -> None:
    is_causal = case.name.startswith("stream_causal")
    given, arrays = case.json["input"], case.arrays
    mel = rule(given["prompt_mel"]).numpy()
    voice = VoicePack(np.array(given["prompt_tokens"]), rule(given["speaker"]).numpy(), mel)
    speech = Token2Wav(
        _flow(case),
        _vocoder(case, is_causal=is_causal),
        slots=1,
        steps=case.json["n_timesteps"],
        prompt_frames=voice.frames,
    )
    mels = _listened(speech)
    speech.begin(0, speech.prime(voice))
    mels.clear()
    rest = list(given["generated_tokens"])
    for number, piece in enumerate(case.json["chunks"]):
        window = VocoderWindow(tuple(rest[: piece["tokens"]]), piece["last"])
        del rest[: piece["tokens"] - 3]
        wave = speech.decode([0], [window])[0]
        if number == 0 and not is_causal and not piece["last"]:
            # The oldest build, which made these, does not lead with silence.
            wave = wave[OVERLAP_SAMPLES:]
        check.equal(f"samples {number}", len(wave), piece["samples"])
        check.equal(f"mel frames {number}", mels[number].shape[1], piece["mel_frames"])
        check.close(f"mel{number}", mels[number], arrays[f"mel{number}"])
        check.close(f"wave{number}", cut(wave), arrays[f"wave{number}"], PITCH_SLACK)
        _cache_shapes(speech, piece["caches"], number, check)
    _vocoder_alone(case, check, is_causal=is_causal)


def _vocoder_alone(case: Case, check: Checker, *, is_causal: bool) -> None:
    """The vocoder's stream over the recorded mels."""
    vocoder, arrays = _vocoder(case, is_causal=is_causal), case.arrays
    rows: Any = [vocoder.row()]
    for number, piece in enumerate(case.json["chunks"]):
        mel = torch.from_numpy(arrays[f"mel{number}"])[None]
        made, rows = vocoder.stream(rows, mel, is_last=piece["last"])
        wave = made[0].numpy()
        if is_causal and number == 0 and not piece["last"]:
            wave = np.concatenate([np.zeros(OVERLAP_SAMPLES, np.float32), wave])
        slack = TOLERANCE if is_causal else PITCH_SLACK
        check.close(f"vocoder {number}", cut(wave), arrays[f"wave{number}"], slack)


def _listened(speech: Token2Wav) -> list[Tensor]:
    """Mels of every call from now on."""
    mels: list[Tensor] = []
    advance = speech.flow.advance

    def noted(*arguments: Any, **options: Any) -> FlowStep:
        step = advance(*arguments, **options)
        mels.append(step.mel[0])
        return step

    speech.flow.advance = noted  # type: ignore[method-assign]
    return mels


def _cache_shapes(
    speech: Token2Wav, wanted: dict[str, list[int]], number: int, check: Checker
) -> None:
    """Ours are laid out otherwise; what must agree is how much a row remembers."""
    row, shape = speech.memory.rows[0], speech.flow.shape
    here = f"caches {number}"
    check.equal(f"{here} history", len(row.places), wanted["estimator_att_cache"][4])
    check.equal(f"{here} frames", row.frames, wanted["conformer_att_cache"][3])
    check.equal(f"{here} tokens", 2 * row.tokens, wanted["conformer_att_cache"][3])
    layers = shape.blocks + shape.up_blocks
    check.equal(f"{here} layers", layers, wanted["conformer_att_cache"][0])
    check.equal(f"{here} depth", shape.estimator_depth, wanted["estimator_att_cache"][1])
