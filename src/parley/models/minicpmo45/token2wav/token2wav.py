"""Converts speech tokens to 24 kHz audio, streaming, for several conversations together.

A row gets a voice (`begin`), then windows of tokens (`decode`), the last of which closes its turn;
`begin` starts the next one. Windows of different rows with the same shape share all network calls,
others are processed one after another, so the audio of a row does not depend on other rows. Priming
a voice is expensive (the whole prompt is processed by the flow); it is done once per voice, and
starting a turn only copies.

Source: speech.md 3 and 4. There are two kinds of voice files, distinguished by a tensor's shape
(`VoiceFiles`); the published ones are the classic kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.token2wav.flow import Flow
from parley.models.minicpmo45.token2wav.flow_memory import (
    KEPT_FRAMES,
    MOST_FRAMES,
    FlowCheckpoint,
    FlowMemory,
    FlowRow,
    FlowStep,
    Trim,
)
from parley.models.minicpmo45.token2wav.vocoder import OVERLAP_SAMPLES, ClassicRow, ClassicVocoder
from parley.models.minicpmo45.token2wav.vocoder_causal import CausalRow, CausalVocoder
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.token2wav.windows import LOOK_AHEAD, SILENT_TOKEN, VocoderWindow, Wave

STEPS = 5
"""Euler steps of the published unified model. Source: speech.md 3.4."""

PROMPT_FRAMES = 502
"""Default maximum length of a prompt: ten seconds, rounded up to a token."""

VOICES_READY = 4
"""Number of primed voices kept on the device; others in use are kept in the host's memory."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class PrimedVoice:
    """A voice after priming: read-only, shared by all rows that speak with it."""

    pack: VoicePack
    memory: FlowMemory


Stream = ClassicRow | CausalRow
"""State of the vocoder in a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    flow: FlowCheckpoint
    stream: Stream | None


class Token2Wav:
    """Flow and vocoder for all slots.

    Args:
        steps: number of Euler steps; a primed voice is valid for one number of steps.
        prompt_frames: maximum length of a prompt; longer voices are cropped.
        graphs: captures the Euler loop and the vocoder; None: no capture.
        history: type of the estimator's history; None: the flow's type.
    """

    def __init__(
        self,
        flow: Flow,
        vocoder: ClassicVocoder | CausalVocoder,
        *,
        slots: int,
        steps: int = STEPS,
        prompt_frames: int = PROMPT_FRAMES,
        graphs: GraphRunner | None = None,
        history: torch.dtype | None = None,
    ) -> None:
        self.flow, self.vocoder = flow, vocoder
        self.history = history
        self.is_causal = isinstance(vocoder, CausalVocoder)
        self.trim = Trim.EVEN if self.is_causal else Trim.PUBLISHED
        self.prompt_frames = prompt_frames
        self.schedule = flow.schedule(steps)
        flow.pack()
        vocoder.pack()
        columns = prompt_frames + KEPT_FRAMES
        places = columns + MOST_FRAMES
        self.memory = FlowMemory(
            flow, slots, steps=steps, places=places, columns=columns, history=history
        )
        if graphs is not None:
            vocoder.graphs, vocoder.slots = graphs, slots
            flow.serve(self.memory, graphs)
        self._streams: list[Stream | None] = [None] * slots
        self._ready: OrderedDict[str, PrimedVoice] = OrderedDict()
        self.voices_ready = VOICES_READY
        """Primed voices kept on the device."""
        self.voices: dict[int, PrimedVoice] = {}
        """Those of slots that speak."""
        # Voices are primed while other rows speak.
        self._side: torch.cuda.Stream | None = None
        if flow.device.type == "cuda":
            self._side = torch.cuda.Stream(flow.device)  # type: ignore[no-untyped-call]
        # Rows that speak with the same voice share it, even if it is no longer in the cache.
        self._shared: WeakValueDictionary[str, PrimedVoice] = WeakValueDictionary()

    def offline(self, steps: int) -> Token2Wav:
        """The same networks with another number of Euler steps, for one row; without capture."""
        return Token2Wav(
            self.flow,
            self.vocoder,
            slots=1,
            steps=steps,
            prompt_frames=self.prompt_frames,
            history=self.history,
        )

    @property
    def row_bytes(self) -> int:
        return self.memory.nbytes // len(self._streams)

    def capture(self) -> None:
        self.flow.capture(self.schedule)
        self.vocoder.capture()

    def prime(self, pack: VoicePack) -> PrimedVoice:
        """Prepare a voice for speaking; immediate if it was used recently.

        May be called in one other thread while rows speak.
        """
        return self._aside(partial(self._primed, pack.cropped(self.prompt_frames)))

    def prime_slot(self, slot: int, pack: VoicePack) -> None:
        """Start a turn in a slot with a voice that no other slot uses, which is primed in this
        slot. May be called in one other thread while other slots speak.
        """
        self.memory.clear(slot)
        self._aside(partial(self._prompt, self.memory, slot, pack.cropped(self.prompt_frames)))
        self._streams[slot] = self.vocoder.row()

    def _aside(self, prime: Callable[[], Primed]) -> Primed:
        """Run something on a separate stream, in parallel to rows that speak."""
        if self._side is None:
            return prime()
        # Earlier work on the device must be complete before its results are read here.
        self._side.wait_stream(torch.cuda.default_stream(self._side.device))
        with torch.cuda.stream(self._side):
            primed = prime()
            self._side.synchronize()
        return primed

    @torch.inference_mode()
    def _primed(self, pack: VoicePack) -> PrimedVoice:
        known = self._shared.get(pack.key)
        if known is not None:
            return self._kept(known)
        memory = FlowMemory(
            self.flow,
            1,
            steps=self.schedule.count,
            places=pack.frames,
            columns=pack.frames,
            history=self.history,
        )
        self._prompt(memory, 0, pack)
        return self._kept(PrimedVoice(pack, memory))

    @torch.inference_mode()
    def _prompt(self, memory: FlowMemory, slot: int, pack: VoicePack) -> None:
        """Process a voice's prompt with the flow, in an empty slot."""
        tokens = [int(token) for token in pack.tokens]
        # The classic files were trained with silence as the look-ahead of the prompt, the causal
        # ones with its own start.
        ahead = tokens[:LOOK_AHEAD] if self.is_causal else [SILENT_TOKEN] * LOOK_AHEAD
        ahead += [SILENT_TOKEN] * (LOOK_AHEAD - len(ahead))
        memory.rows[slot] = FlowRow(speaker=self.flow.speaker(torch.from_numpy(pack.embedding)))
        mel = torch.from_numpy(pack.mel)[None].to(memory.left)
        window = [tokens + ahead]
        self.flow.advance(
            memory, [slot], window, self.schedule, is_last=False, trim=self.trim, prompt=mel
        ).commit()

    def _kept(self, voice: PrimedVoice) -> PrimedVoice:
        """Cache a voice; the least recently used are moved to the host's memory, where they stay as
        long as they are in use."""
        key = voice.pack.key
        self._shared[key] = self._ready[key] = voice
        self._ready.move_to_end(key)
        while len(self._ready) > self.voices_ready:
            _, oldest = self._ready.popitem(last=False)
            if any(used is oldest for used in list(self.voices.values())):
                oldest.memory.leave_device()
        return voice

    @torch.inference_mode()
    def begin(self, slot: int, voice: PrimedVoice) -> None:
        """Start a turn in a slot; an unfinished one is dropped."""
        self.voices[slot] = voice
        self.memory.copy_from(slot, voice.memory)
        self._streams[slot] = self.vocoder.row()

    def restart(self, slot: int) -> None:
        """Start a turn in a slot with its current voice."""
        self.begin(slot, self.voices[slot])

    def close(self, slot: int) -> None:
        """Clear a slot and release its voice, if it has one."""
        if self.voices.pop(slot, None) is not None:
            self.memory.clear(slot)
            self._streams[slot] = None

    @torch.inference_mode()
    def decode(self, slots: Sequence[int], windows: Sequence[VocoderWindow]) -> list[Wave]:
        """The audio of one window per slot.

        Args:
            slots: distinct; each must be started, and not closed by a last window.

        If a call raises, no slot has changed.

        Returns:
            Samples in the order of `slots`; 960 per token that became audio. The first 3,840 of a
            first window are silence, and the last window has as many more.
        """
        for slot, window in zip(slots, windows, strict=True):
            self._check(slot, window)
        mels: dict[int, Tensor] = {}
        steps: list[FlowStep] = []
        for (_, is_last), members in _grouped(
            range(len(slots)), lambda i: (len(windows[i].tokens), windows[i].is_last)
        ):
            step = self.flow.advance(
                self.memory,
                [slots[i] for i in members],
                [windows[i].tokens for i in members],
                self.schedule,
                is_last=is_last,
                trim=self.trim,
            )
            steps.append(step)
            mels.update(zip(members, step.mel, strict=True))
        streams = [self._stream(slot) for slot in slots]
        made: list[tuple[list[int], Tensor]] = []
        after: dict[int, Any] = {}
        for (is_last, _, _), members in _grouped(
            range(len(slots)),
            lambda i: (windows[i].is_last, mels[i].shape[1], streams[i].signature),
        ):
            given: list[Any] = [streams[i] for i in members]
            mel = torch.stack([mels[i] for i in members])
            sound, rows = self.vocoder.stream(given, mel, is_last=is_last)
            made.append((members, sound))
            after.update(zip(members, rows, strict=True))
        for step in steps:
            step.commit()
        led = [
            stream.mel.shape[1] == 0 and not window.is_last
            for stream, window in zip(streams, windows, strict=True)
        ]
        for i, slot in enumerate(slots):
            self._streams[slot] = None if windows[i].is_last else after[i]
        return _waves(made, led)

    @torch.inference_mode()
    def snapshot(self, slot: int) -> Snapshot:
        """A snapshot of a slot's turn. Nearly free until the turn continues."""
        return Snapshot(self.memory.checkpoint(slot), self._streams[slot])

    @torch.inference_mode()
    def restore(self, slot: int, snapshot: Snapshot) -> None:
        """Roll back to a snapshot, which stays valid."""
        self.memory.restore(slot, snapshot.flow)
        self._streams[slot] = snapshot.stream

    def _stream(self, slot: int) -> Stream:
        stream = self._streams[slot]
        if stream is None:
            raise ValueError(f"slot {slot} has no turn; begin one first")
        return stream

    def _check(self, slot: int, window: VocoderWindow) -> None:
        self._stream(slot)
        least = 1 if window.is_last else LOOK_AHEAD + 1
        if len(window.tokens) < least:
            raise ValueError(f"a window needs at least {least} tokens, got {len(window.tokens)}")
        vocabulary = self.flow.shape.vocabulary
        strangers = [token for token in window.tokens if not 0 <= token < vocabulary]
        if strangers:
            raise ValueError(f"{strangers[0]} is not a speech token; there are {vocabulary}")


def _waves(made: Sequence[tuple[list[int], Tensor]], led: Sequence[bool]) -> list[Wave]:
    """Audio of groups of rows in row order, after silence if `led`."""
    waves: dict[int, Wave] = {}
    for members, sound in made:
        waves.update(zip(members, sound.cpu().numpy(), strict=True))
    silence = np.zeros(OVERLAP_SAMPLES, np.float32)
    return [np.concatenate([silence, waves[i]]) if led[i] else waves[i] for i in range(len(led))]


Key = TypeVar("Key", bound=Hashable)
Primed = TypeVar("Primed")


def _grouped(numbers: range, key: Callable[[int], Key]) -> list[tuple[Key, list[int]]]:
    """Group indices with equal keys, in order of first appearance."""
    groups: dict[Key, list[int]] = {}
    for number in numbers:
        groups.setdefault(key(number), []).append(number)
    return list(groups.items())
