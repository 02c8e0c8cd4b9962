"""Builds a cascade from settings, which name the source of each part."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import torch

from parley.errors import SetupError
from parley.models import pocket_data
from parley.models.cascade import store
from parley.models.cascade.connection import Endpoint, without_credentials
from parley.models.cascade.installed import (
    PACKAGES,
    FasterWhisper,
    is_ctranslate2,
    load_voice,
    recogniser_package,
    voice_package,
)
from parley.models.cascade.llama import LlamaShape, row_bytes
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.model import Cascade
from parley.models.cascade.others import load_causal, load_whisper
from parley.models.cascade.parts import Recogniser, Speaker, Vision
from parley.models.cascade.phrases import Phrases
from parley.models.cascade.remote import RemoteWriter, check
from parley.models.cascade.remote_voice import RemoteSpeaker
from parley.models.cascade.vision.photographs import Photographs
from parley.models.cascade.voice.lexicon import Lexicon
from parley.models.cascade.voice.speaker import OwnSpeaker
from parley.models.cascade.watch import ServerAway
from parley.models.cascade.writer import Writer
from parley.models.plan import ModelPlan
from parley.protocol.networks import host_name, is_private_name
from parley.settings import ModelSettings
from parley.vad.base import DetectorFactory
from parley.vad.energy import EnergyDetector
from parley.vad.silero import SileroModel

SLOTS_AUTO = 4
LIMIT_TOKENS = 2048
WORKER_BYTES = 1_000_000_000
"""Resident memory of a worker with the bundled parts. Source: docs/pocket-report.md."""


def load(settings: ModelSettings) -> Cascade:
    """The cascade that the settings describe.

    Raises:
        SetupError: a part is missing or unreachable.
    """
    is_small = is_own_llm(settings) or (is_address(settings.llm) and settings.asr == "own")
    if is_small and "OMP_NUM_THREADS" not in os.environ:
        # Bundled matrices are too small for several threads: a second one gains a tenth on an idle
        # machine, and on a busy one everything, including loading, takes several times as long.
        torch.set_num_threads(1)
    folder = pocket_data.folder(settings)
    slots = SLOTS_AUTO if settings.slots == "auto" else settings.slots or 1
    with ThreadPoolExecutor(1) as pool:
        recogniser = pool.submit(find_recogniser, settings, folder)
        speaker = pool.submit(find_speaker, settings, folder)
        vision = pool.submit(find_vision, folder)
        make_detector = pool.submit(find_detector)
        writer = find_writer(settings, folder, slots)
    return Cascade(
        writer,
        recogniser.result(),
        speaker.result(),
        vision.result(),
        make_detector.result(),
        rows=slots,
        name=settings.public_name,
        weights_bytes=bundled_bytes(folder) if folder else 0,
        answers_early=answers_early(settings),
        phrases=find_phrases(writer, speaker.result(), folder),
    )


def describe(settings: ModelSettings) -> ModelPlan:
    """Describe what `load` would do."""
    problems: list[str] = []
    notes: list[str] = []
    weights = None
    try:
        folder = pocket_data.folder(settings)
        if folder is not None:
            weights = bundled_bytes(folder)
            if settings.tts == "own" and not list(folder.glob("voice-*.safetensors")):
                notes.append("No voice is installed: text only.")
    except SetupError as error:
        problems.append(f"{error} {error.hint}".strip())
    for name, where in ((settings.asr, recogniser_package), (settings.tts, voice_package)):
        package = where(name)
        if package and importlib.util.find_spec(package) is None:
            problems.append(
                f"{name} needs the package {PACKAGES[package]}, which is not installed."
            )
    # A voice has no hub id.
    for name, has_id in ((settings.llm, True), (settings.asr, True), (settings.tts, False)):
        may_be_id = has_id and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name)
        is_known = name == "own" or is_address(name) or may_be_id
        if not is_known and not Path(name).expanduser().exists():
            problems.append(f"There is no '{name}'; an address starts with http:// or https://.")
    needed, there = needed_bytes(settings), available_bytes()
    if there is not None:
        words = (
            f"A worker takes about {needed / 1e9:.1f} GB of memory; {there / 1e9:.1f} GB are free."
        )
        (notes if needed <= there else problems).append(words)
    if is_address(settings.llm):
        try:
            offered = check(endpoint_of(settings))
            name = without_credentials(settings.llm)
            notes.append(f"{name} offers: {_some_of(offered)}.")
            chosen = _chosen(settings, offered)
            if offered and chosen not in offered:
                problems.append(f"{name} offers no model '{chosen}'.")
        except SetupError as error:
            problems.append(f"{error} {error.hint}".strip())
    if is_address(settings.tts):
        name, problem = without_credentials(settings.tts), _remote_speaker(settings).try_out()
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            notes.append(f"{name} speaks as '{settings.tts_voice}'.")
    return ModelPlan(
        settings.name,
        source="the package parley-pocket-data",
        device="cpu",
        slots=SLOTS_AUTO if settings.slots == "auto" else settings.slots or 1,
        dtype="int8",
        weights_bytes=weights,
        slot_bytes=row_bytes(LlamaShape(), LIMIT_TOKENS) if is_own_llm(settings) else None,
        notes=tuple(notes),
        problems=tuple(problems),
    )


def needed_bytes(settings: ModelSettings) -> int:
    """Approximate memory of a worker: measured with the bundled parts, plus the size of a language
    model's folder."""
    folder = Path(settings.llm).expanduser()
    if is_own_llm(settings) or is_address(settings.llm) or not folder.is_dir():
        return WORKER_BYTES
    files = (*folder.glob("*.safetensors"), *folder.glob("*.bin"))
    return WORKER_BYTES + sum(path.stat().st_size for path in files)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Free or reclaimable memory of the machine, or of the container or service whose limit is
    smaller; None if the system does not report it."""
    lines = _lines(root / "proc/meminfo")
    found = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return min((*found, *_left_in_groups(root)), default=None)


def _left_in_groups(root: Path) -> Iterator[int]:
    """What the limits of this process's control groups (version 2) leave. A container sees its own
    group as the root."""
    groups = root / "sys/fs/cgroup"
    own = next(
        (line for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "0::/"
    )
    group = groups / own.removeprefix("0::").lstrip("/").strip()
    for folder in (group, *group.parents[: len(group.parts) - len(groups.parts)]):
        limit, used = _lines(folder / "memory.max"), _lines(folder / "memory.current")
        if limit and used and limit[0].strip().isdigit():
            stat = dict(line.split() for line in _lines(folder / "memory.stat"))
            yield max(0, int(limit[0]) - int(used[0]) + int(stat.get("inactive_file", 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except OSError:
        return []


def bundled_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def is_own_llm(settings: ModelSettings) -> bool:
    """True if the bundled language model writes the answers."""
    return settings.llm == "own"


def is_address(text: str) -> bool:
    """True if a setting is the address of a server."""
    return text.startswith(("http://", "https://"))


def answers_early(settings: ModelSettings) -> bool:
    """True if each pause of the user may start an answer: as configured, otherwise True unless an
    address is public, because each request to a public one is likely to cost money."""
    if settings.llm_early is not None:
        return settings.llm_early
    return is_free(settings.llm) and is_free(settings.tts)


def is_free(name: str) -> bool:
    """False for a public address, whose requests are likely to cost money."""
    return not is_address(name) or is_private_name(host_name(name) or "")


def endpoint_of(settings: ModelSettings) -> Endpoint:
    return Endpoint(
        settings.llm.rstrip("/"), settings.llm_model, settings.llm_key, settings.llm_timeout_s,
        settings.llm_images, settings.llm_fields,
    )  # fmt: skip


def _chosen(settings: ModelSettings, offered: list[str] | None) -> str:
    if settings.llm_model:
        return settings.llm_model
    if offered and len(offered) == 1:
        return offered[0]
    count = len(offered or ())
    kind = SetupError if count else ServerAway
    raise kind(
        f"The server at {without_credentials(settings.llm)} offers {count or 'no'} models.",
        hint=f"Name one with --llm-model: {_some_of(offered)}"
        if offered
        else "Have it load or download one, or name one with --llm-model.",
    )


def _some_of(names: list[str] | None) -> str:
    """The first of the names of a server's models: some servers have hundreds."""
    if not names:
        return "nothing" if names is not None else "no list of its models"
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


def find_writer(settings: ModelSettings, folder: Path | None, slots: int) -> Writer:
    if is_address(settings.llm):
        endpoint = endpoint_of(settings)
        writer = RemoteWriter(
            endpoint, rows=slots, limit_tokens=settings.context_tokens,
            find_model=lambda: _chosen(settings, check(endpoint)), wakes=is_free(settings.llm),
        )  # fmt: skip
        writer.connect()
        return writer
    if settings.llm != "own":
        return load_causal(settings.llm, rows=slots)
    assert folder is not None
    words = store.load_tokenizer(folder)
    return LocalWriter(store.load_llama(folder), words, rows=slots, limit_tokens=LIMIT_TOKENS)


def find_recogniser(settings: ModelSettings, folder: Path | None) -> Recogniser:
    if settings.asr != "own":
        if is_ctranslate2(settings.asr):
            return FasterWhisper(settings.asr)
        return load_whisper(settings.asr)
    assert folder is not None
    return store.load_recogniser(folder)


def find_speaker(settings: ModelSettings, folder: Path | None) -> Speaker | None:
    """The voice; None if none is installed."""
    own = OwnSpeaker(folder) if folder and list(folder.glob("voice-*.safetensors")) else None
    if is_address(settings.tts):
        return _remote_speaker(settings, own)
    if settings.tts != "own":
        if Path(settings.tts).expanduser().is_file():
            return load_voice(settings.tts, settings.tts_voice)
        raise SetupError(
            f"There is no voice called '{settings.tts}'.",
            hint="Give own, the address of a server with /audio/speech, or the ONNX file of a "
            "Piper voice or of Kokoro.",
        )
    return own


def _remote_speaker(settings: ModelSettings, stand_in: Speaker | None = None) -> RemoteSpeaker:
    is_same_host = urlsplit(settings.tts).netloc == urlsplit(settings.llm).netloc
    key = settings.tts_key or (settings.llm_key if is_same_host else "")
    url, limit_s = settings.tts.rstrip("/"), settings.tts_timeout_s
    endpoint = Endpoint(url, settings.tts_model, key, limit_s)
    return RemoteSpeaker(endpoint, settings.tts_voice, stand_in)


def find_phrases(writer: Writer, speaker: Speaker | None, folder: Path | None) -> Phrases | None:
    """The sentences that the notes of the bundled language model can answer, with the lexicon of
    the voice; None for other models, or without a lexicon."""
    if folder is None or not isinstance(writer, LocalWriter):
        return None
    path = folder / "lexicon.xz"
    if isinstance(speaker, OwnSpeaker):
        lexicon = speaker.lexicon
    elif path.is_file():
        lexicon = Lexicon(path)
    else:
        return None
    pieces = writer.words.get_vocab()
    return Phrases(lexicon, (piece[1:] for piece in pieces if re.fullmatch("Ġ[a-z]{3,}", piece)))


def find_vision(folder: Path | None) -> Vision | None:
    """The vision part; None if none is installed."""
    return Photographs(folder) if folder and list(folder.glob("eyes-*.safetensors")) else None


def find_detector() -> DetectorFactory:
    """Silero if it is installed, else a detector of loudness."""
    try:
        return SileroModel()
    except SetupError:
        return EnergyDetector
