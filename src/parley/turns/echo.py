"""Detects the assistant's echo: compares the microphone with the played audio; pure, like
`interruption.py`.

Audio that resembles what was played in the last seconds is the assistant's echo: the normalised
cross-correlation of the two finds it at any delay and level. Times are monotonic seconds.

Source: docs/understand/interruptions.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from parley.media.pcm import Pcm, Samples
from parley.media.resample import resample
from parley.turns.echo_levels import (
    EXPLAINED,
    EXPLAINED_MOMENT,
    EXPLAINED_SHORT,
    HASTY_LEAST_FRAMES,
    HELD_S,
    LEAST_FRAMES,
    EchoLevels,
    Powers,
    held,
    powers,
    powers_of,
    powers_of_slow,
)
from parley.vad.base import RATE_HZ, power_of

ECHO_ALIKE: Final = 0.6
"""Minimum correlation of an echo, at times when an echo is expected. 97 of 100 echoes are above
0.85, in a reverberant room above 0.64; two speakers stay below 0.56, except in the first moment."""

UNSURE_FRAMES: Final = 7
"""Number of loud half windows that may be the start of an interruption: 128 ms of speech raise a
suspicion, and words start softly."""

SURELY_ALIKE: Final = 0.85
"""The same at any other time, and if the echo is known to be softer. Two speakers never reach
it."""

PLAYED_DBFS: Final = -45.0
"""Level from which the assistant counts as audible."""

SOON_S, HASTY_SOON_S = 0.1, 0.3
"""Delay of the played audio for that comparison; the longer one applies if the first moments
decide."""

DELAY_S: Final = 0.45
"""Time after playback within which an echo is expected: network, devices, and the room."""

NEAR_S: Final = 0.1
"""Maximum difference in delay between an echo and the next one."""

ECHO_S: Final = 5.0
"""Maximum delay of an echo: clients that do not report playback may buffer."""

EARLY_S: Final = 1.0
"""Time by which a client that does not report playback may be ahead of the computed time: it may
have discarded earlier audio."""

WAITING_S: Final = 90.0
"""Maximum length of stored audio, which may have been sent ahead; the oldest is dropped."""

PAUSE_S: Final = 0.05
"""Maximum gap between two pieces of audio that belong together."""

ECHO_RATE_HZ: Final = 4000
"""Echoes are searched below 2 kHz, where voices are strong: a twentieth of the work."""

SPECTRA_ALIKE: Final = ((0.4, 0.6), (0.6, 0.53), (0.8, 0.48))
"""Minimum likeness of the spectra over time of an echo, by its length in seconds. Walls and small
loudspeakers change the waveform, but not the times at which each band is loud. 2 to 5 of 100 people
who speak over an echo that is 10 dB softer are above it."""

UNIT_ALIKE: Final = 0.55
"""The same for the speech in a unit of a second, when nothing else is known of the echo. Of 63
seconds of echo each (dry, rooms of 0.35 to 0.9 s with walls as loud as the direct sound) all are
above it, and 95 of 100 from an overdriven loudspeaker; of people who speak over an echo that is 6
dB softer, 5 of 100."""

UNHEARD_ALIKE: Final = 0.75
"""The same for speech that is louder than any echo is expected to be. Of 378 words in a quiet room
one is above it (12 are above the usual minimum). Of units of echo, as they occur when headphones
are taken off, 96 of 100 are."""

LOUDER: Final = 10.0
"""Speech counts as louder than an echo if it has this many times the power of the loudest possible
one."""

LOUD_SHARE, AROUND_FRAMES, AROUND_SHARE = 0.1, 3, 0.1
"""If that many frames of a unit should contain an echo of at least this share of the power of its
speech, and it has less than this share of their power, the speech is no echo. Source:
docs/log/conversation.md."""

SPECTRA_LEAST_S: Final = 0.35
"""Shorter audio cannot be distinguished by its spectrum."""

MOMENT_S: Final = 0.128
"""The level says little about shorter audio."""

KNOWN_ALIKE: Final = 0.12
"""Addition to the minimum likeness if the echo's level is known, and does not explain the audio."""

_FRAME: Final = ECHO_RATE_HZ // 50
"""Samples of a frame of 20 ms."""
_BAND_EDGES: Final = (3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 33, 39)
"""In steps of 50 Hz: 14 bands, from 150 Hz."""
_WALLS_S: Final = 0.6
"""Reverberation time of a usual room, in which an echo falls by 60 dB."""
_LOUD: Final = 2.0
"""Frames this many powers of ten below the loudest are not compared."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Audio at `ECHO_RATE_HZ`, and the time at which its first sample is played."""

    samples: Samples
    starts_s: float

    @property
    def ends_s(self) -> float:
        return self.starts_s + len(self.samples) / ECHO_RATE_HZ

    def between(self, start_s: float, end_s: float) -> Samples:
        """The part of it that is played between the two times."""
        first, last = (round((at_s - self.starts_s) * ECHO_RATE_HZ) for at_s in (start_s, end_s))
        return self.samples[max(0, first) : max(0, last)]


class PlayedSound:
    """The audio sent to a client and the times of its playback. Memory is bounded by `WAITING_S` of
    audio, 1.4 MB.

    Args:
        is_hasty: the first moments of speech decide, so loud audio is only learnt if
            `forget_newest` is not called within `UNSURE_FRAMES`.
    """

    def __init__(self, *, is_hasty: bool = False) -> None:
        self._is_hasty = is_hasty
        self._pieces: deque[_Piece] = deque()
        self._samples = 0
        self._has_reports = False
        """True if the client reports playback."""
        self._delay_s: float | None = None
        """Delay of echoes outside the expected time, once found twice."""
        self._once_s: float | None = None
        """Delay of the last such echo."""
        self._levels = EchoLevels(HASTY_LEAST_FRAMES if is_hasty else LEAST_FRAMES)
        self._newest: deque[tuple[Powers, Powers]] = deque()
        """Powers heard and played, which are not learnt yet."""

    def play(self, pcm: Pcm, starts_s: float) -> None:
        """Add the next audio, of any rate; its first sample is played at `starts_s`."""
        piece = _Piece(resample(pcm, ECHO_RATE_HZ).samples, starts_s)
        self._pieces.append(piece)
        self._samples += len(piece.samples)
        while self._samples > WAITING_S * ECHO_RATE_HZ and len(self._pieces) > 1:
            self._drop()

    def cut(self, at_s: float) -> None:
        """Drop audio that is not played before `at_s`."""
        self._pieces = deque(
            _Piece(piece.between(piece.starts_s, at_s), piece.starts_s)
            for piece in self._pieces
            if piece.starts_s < at_s
        )
        self._samples = sum(len(piece.samples) for piece in self._pieces)

    def move(self, seconds: float) -> None:
        """The client reports that it plays the most recent audio later than computed, by
        `seconds`."""
        self._has_reports = True
        moved: deque[_Piece] = deque()
        while self._pieces:
            piece = self._pieces.pop()
            moved.appendleft(replace(piece, starts_s=piece.starts_s + seconds))
            if not self._pieces or piece.starts_s - self._pieces[-1].ends_s > PAUSE_S:
                break
        self._pieces += moved

    def is_heard_in(self, heard: Samples, at_s: float, *, learns: bool = True) -> bool:
        """True if a stretch of the microphone (N,), 16 kHz, which ended at `at_s`, is an echo.

        Args:
            learns: remember the delay of the echo; False for audio that will be examined again.
        """
        is_echo, delay_s = self._find(heard, at_s)
        if learns and delay_s is not None:
            if self._once_s is not None and abs(delay_s - self._once_s) <= NEAR_S:
                self._delay_s = delay_s
            self._once_s = delay_s
        return is_echo

    def is_alike_in_time(self, heard: Samples, at_s: float) -> bool:
        """True if a stretch of the microphone (N,), 16 kHz, which ended at `at_s`, gets loud and
        soft in each band like the audio played some time before."""
        seconds = len(heard) / RATE_HZ
        if not self._pieces:
            return False
        powers, expected, share = self._explained(heard, at_s)
        if share is not None and share >= (
            EXPLAINED if seconds >= SPECTRA_LEAST_S else EXPLAINED_SHORT
        ):
            return True
        if seconds < SPECTRA_LEAST_S:
            return False
        least = _least_alike(seconds) + (0.0 if share is None else KNOWN_ALIKE)
        most_s = DELAY_S if self._has_reports else max(DELAY_S, (self._delay_s or 0.0) + NEAR_S)
        played = self._between(at_s - seconds - most_s, at_s + NEAR_S)
        if spectral_likeness(_slow(heard), played) < least:
            return False
        self._levels.learn(powers, expected)
        return True

    def is_excluded(self, heard: Samples, at_s: float) -> bool:
        """True if a stretch of the microphone (N,), 16 kHz, which ended at `at_s`, cannot be an
        echo: nothing is played, or its echo is known to be softer."""
        seconds = len(heard) / RATE_HZ
        if not len(self._between(at_s - seconds - DELAY_S, at_s).nonzero()[0]):
            return True
        *_, share = self._explained(heard, at_s)
        most = EXPLAINED_MOMENT if seconds < MOMENT_S else EXPLAINED_SHORT
        return share is not None and share < most

    def _explained(self, heard: Samples, at_s: float) -> tuple[Powers, Powers, float | None]:
        """The powers of the audio that ended at `at_s`, the maximum powers of the played audio that
        may echo in it, and the share of it that may be echo."""
        powers = powers_of(heard)
        expected = self._expected(at_s - len(heard) / RATE_HZ, len(powers))
        return powers, expected, self._levels.explained(powers, expected)

    def _between(self, start_s: float, end_s: float) -> Samples:
        """Audio that is played between the two times."""
        played = np.zeros(round((end_s - start_s) * ECHO_RATE_HZ), np.float32)
        for piece in self._pieces:
            # Most of them are not, and slicing all would take milliseconds.
            if piece.starts_s < end_s and piece.ends_s > start_s:
                near = piece.between(start_s, end_s)
                first = max(0, round((piece.starts_s - start_s) * ECHO_RATE_HZ))
                room = min(len(near), len(played) - first)
                played[first : first + room] = near[:room]
        return played

    def _expected(self, start_s: float, frames: int) -> Powers:
        """Per frame of 32 ms and band, the maximum power that is played in the time before it from
        which an echo may arrive."""
        end_s = start_s + 0.032 * frames
        return held(powers_of_slow(self._between(start_s - HELD_S, end_s)), frames)

    def hear(self, heard: Samples, starts_s: float, ends_s: float, *, is_loud: bool) -> None:
        """Process half a window of the microphone while no speech is suspected."""
        soon_s = HASTY_SOON_S if self._is_hasty else SOON_S
        near = self._between(starts_s - soon_s, ends_s - soon_s)
        if float(np.dot(near, near)) >= (ends_s - starts_s) * ECHO_RATE_HZ * 10 ** (
            PLAYED_DBFS / 10
        ):
            self._newest.append((powers_of(heard), self._expected(starts_s, 1)))
            if not (is_loud and self._is_hasty):
                self._levels.learn(*self._newest.pop())
            elif len(self._newest) > UNSURE_FRAMES:
                self._levels.learn(*self._newest.popleft())

    def forget_newest(self) -> None:
        """Drop audio that is not learnt yet: the user interrupts, so it was not the echo alone."""
        self._newest.clear()

    def _find(self, heard: Samples, at_s: float) -> tuple[bool, float | None]:
        """Returns True if it is an echo, and the delay of an echo outside the expected time."""
        seconds = len(heard) / RATE_HZ
        longest_s = DELAY_S if self._has_reports else ECHO_S
        while self._pieces and self._pieces[0].ends_s <= at_s - longest_s - seconds:
            self._drop()
        if not self._pieces:
            return False, None
        sound = _slow(heard)
        soon = SURELY_ALIKE if self.is_excluded(heard, at_s) else ECHO_ALIKE
        expected = [(-NEAR_S, DELAY_S, soon)]
        if self._delay_s is not None:
            expected.append((self._delay_s - NEAR_S, self._delay_s + NEAR_S, ECHO_ALIKE))
        for least_s, most_s, least_alike in expected:
            alike, _ = self._search(sound, at_s, least_s, most_s)
            if alike >= least_alike:
                return True, None
        if self._has_reports:
            return False, None
        alike, delay_s = self._search(sound, at_s, -EARLY_S, ECHO_S)
        if alike < SURELY_ALIKE:
            return False, None
        return True, delay_s

    def _search(
        self, sound: Samples, at_s: float, least_s: float, most_s: float
    ) -> tuple[float, float]:
        """The likeness of `sound`, which ended at `at_s`, to audio played between `most_s` and
        `least_s` before it, and the delay between the ends of the two."""
        start_s = at_s - most_s - len(sound) / ECHO_RATE_HZ
        found: list[Samples] = []
        ends_s: list[tuple[int, float]] = []
        """End of each stretch in `found`, and the time at which its playback ends."""
        pause = np.zeros(len(sound), np.float32)
        last_s = start_s
        for piece in self._pieces:
            near = piece.between(start_s, at_s - least_s)
            if len(near):
                # Pauses are shortened to the length of the compared audio.
                gap_s = min(piece.starts_s - last_s, len(pause) / ECHO_RATE_HZ)
                found += [pause[: max(0, round(gap_s * ECHO_RATE_HZ))], near]
                last_s = piece.ends_s
                ends_s.append((sum(map(len, found)), min(last_s, at_s - least_s)))
        if not found:
            return 0.0, 0.0
        alike, end = likeness(sound, np.concatenate(found))
        stretch_end, stretch_ends_s = next(one for one in ends_s if end <= one[0])
        return alike, at_s - stretch_ends_s + (stretch_end - end) / ECHO_RATE_HZ

    def _drop(self) -> None:
        self._samples -= len(self._pieces.popleft().samples)


def is_echo(heard: Samples, said: slice, played: Samples, coupling: float | None = None) -> bool:
    """True if the speech in a unit gets loud and soft in each band like the audio played some time
    before, and the rest of the unit is as loud as this echo would be. Less speech than
    `SPECTRA_LEAST_S` cannot be distinguished.

    Args:
        heard: the unit (N,), 16 kHz; `said` is its speech.
        played: (M,), 16 kHz.
        coupling: the power of the microphone relative to what was played, when last no speech was
            heard in it; None if this is not known.
    """
    seconds = len(heard[said]) / RATE_HZ
    if seconds < SPECTRA_LEAST_S:
        return False
    most = math.inf if coupling is None else LOUDER * coupling * _loudest(played)
    is_louder = _loudest(heard[said]) > most
    least = max(UNHEARD_ALIKE if is_louder else UNIT_ALIKE, _least_alike(seconds))
    theirs, ours = _powers(_slow(heard)), _powers(_slow(played))
    per_frame = _FRAME * RATE_HZ // ECHO_RATE_HZ
    first, end = said.start // per_frame, min(len(theirs), said.stop // per_frame)
    return any(
        _is_heard_around(theirs, first, end, each, int(lag) - first)
        for each in (ours, _in_a_room(ours))
        for lag in np.flatnonzero(_alike(theirs[first:end], each) >= least)
    )


def coupling_of(heard: Samples, played: Samples) -> float | None:
    """The power of the microphone (N,) relative to what is played (M,); None if that is soft."""
    power = power_of(played) if len(played) else 0.0
    return power_of(heard) / power if power > 10 ** (PLAYED_DBFS / 10) else None


def _loudest(heard: Samples) -> float:
    """The largest power of 32 ms in (N,), N at least 512."""
    frames = heard[: len(heard) // 512 * 512].reshape(-1, 512)
    return float(frames.var(axis=1).max(initial=0.0))


def _is_heard_around(theirs: Powers, first: int, end: int, ours: Powers, shift: int) -> bool:
    """False if `theirs` would contain more of `ours`, which is heard in it from `first` to `end`
    and is ahead by `shift` frames: then it is someone else who said that."""
    said = theirs[first:end].sum()
    ratio = said / max(1e-9, ours[first + shift : end + shift].sum())
    frames = np.arange(max(0, -shift), min(len(theirs), len(ours) - shift))
    frames = frames[(frames < first - 1) | (frames > end)]
    expected = ratio * ours[frames + shift].sum(axis=1)
    loud = expected > LOUD_SHARE * said / (end - first)
    if loud.sum() < AROUND_FRAMES:
        return True
    return bool(theirs[frames[loud]].sum() >= AROUND_SHARE * expected[loud].sum())


def _least_alike(seconds: float) -> float:
    lengths_s, alike = zip(*SPECTRA_ALIKE, strict=True)
    return float(np.interp(seconds, np.array(lengths_s), np.array(alike)))


def _slow(heard: Samples) -> Samples:
    """`heard` at `ECHO_RATE_HZ`, without the constant that a microphone adds."""
    constant = heard.mean() if len(heard) else 0.0
    return resample(Pcm(heard - constant, RATE_HZ), ECHO_RATE_HZ).samples


def spectral_likeness(heard: Samples, played: Samples) -> float:
    """The largest correlation of the spectrum of `heard` over time with that of any stretch of
    `played`, both at `ECHO_RATE_HZ`, -1 to 1.

    The constant part of each band is removed: a room and a loudspeaker change it. Only frames in
    which `heard` is loud count: a pause at the same position does not indicate likeness.
    """
    theirs = _powers(heard)
    if not len(theirs):
        return 0.0
    ours = _powers(played)
    return max(float(_alike(theirs, each).max()) for each in (ours, _in_a_room(ours)))


def _alike(theirs: Powers, ours: Powers) -> Powers:
    """The correlation with each stretch of `ours`; [0] if it is too short."""
    frames = len(theirs)
    if len(ours) < frames:
        return np.zeros(1)
    theirs, ours = np.log10(theirs + 1e-6), np.log10(ours + 1e-6)
    loudness = theirs.mean(axis=1)
    loud = loudness > loudness.max() - _LOUD
    shape = theirs[loud] - theirs[loud].mean(axis=0)
    size = float(np.sum(shape**2))
    windows = np.lib.stride_tricks.sliding_window_view(ours, frames, axis=0)
    pieces = np.moveaxis(windows, 2, 1)[:, loud]
    pieces = pieces - pieces.mean(axis=1, keepdims=True)
    products = np.einsum("lfb,fb->l", pieces, shape)
    norms = np.sqrt(size * np.einsum("lfb,lfb->l", pieces, pieces))
    found: Powers = products / np.maximum(norms, 1e-9)
    return found


def _in_a_room(powers: Powers) -> Powers:
    """The powers with the reverberation of a room, which decays within `_WALLS_S`."""
    kept = 10 ** (-6 * _FRAME / ECHO_RATE_HZ / _WALLS_S)
    found = powers.copy()
    for frame in range(1, len(found)):
        found[frame] += kept * found[frame - 1]
    return found


def _powers(sound: Samples) -> Powers:
    """Power per band, every 20 ms, shape (F, 14)."""
    return powers(sound, _FRAME, _BAND_EDGES)


def likeness(heard: Samples, played: Samples) -> tuple[float, int]:
    """The largest normalised cross-correlation of `heard` with any stretch of `played`, 0 to 1, and
    the end of that stretch."""
    if len(played) < len(heard) or not heard.any():
        return 0.0, 0
    size = 1 << (len(played) + len(heard) - 1).bit_length()
    products = np.fft.irfft(np.fft.rfft(played, size) * np.conj(np.fft.rfft(heard, size)), size)[
        : len(played) - len(heard) + 1
    ]
    powers = np.cumsum(np.concatenate([[0.0], played.astype(np.float64) ** 2]))
    power = powers[len(heard) :] - powers[: -len(heard)]
    # Silence has no likeness.
    least = 1e-6 * len(heard)
    norm = np.sqrt(
        np.maximum(power, least) * max(float(np.sum(heard.astype(np.float64) ** 2)), 1e-12)
    )
    alike = np.abs(products) / norm
    best = int(np.argmax(alike))
    return float(alike[best]), best + len(heard)
