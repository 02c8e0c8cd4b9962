"""The pocket model on the engine's contract: `MiniCPMO45` with an inner span and its own vocoder.

Everything else is the large model's code at a small size. The differences, each with its reason:

- answers begin with an inner span, and a turn in a duplex session begins with more caution
  (`inner.py`);
- the vocoder turns codes into sound directly (`vocoder.py`): no reference is primed, a voice is a
  pitch and a formant stretch taken from the reference recording;
- speech codes are drawn at half the asked temperature, because 2048 codes of 40 ms leave less room
  for a wrong one than the large model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from parley.engine.model import Job
from parley.engine.work import Answer, Reply, Work
from parley.errors import InvalidRequest
from parley.media.pcm import Pcm
from parley.models.minicpmo45.config import MiniCPMOConfig
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.mouth import Mouth, Speech
from parley.models.minicpmo45.speech_buffer import LOOK_AHEAD, Wave, Window
from parley.models.minicpmo45.tokens import Words
from parley.models.minicpmo45.weights import Network
from parley.models.pocket.inner import PocketAnswer, PocketReply
from parley.models.pocket.vocoder import CodeVocoder, Spoken, VoiceColor, color_of

SPEECH_HEAT = 0.5
"""Share of the asked speech temperature that is used."""


class PocketModel(MiniCPMO45):
    """See the module's text.

    Args:
        tags: ids that open and close the inner span.
    """

    def __init__(
        self,
        network: Network,
        config: MiniCPMOConfig,
        words: Words,
        *,
        tags: tuple[int, int],
        slots: int,
        mouth: Mouth | None,
        context_tokens: int = 8192,
    ) -> None:
        super().__init__(
            network,
            config,
            words,
            slots=slots,
            context_tokens=context_tokens,
            mouth=mouth,
            rounds_rope=False,
            name="pocket",
        )
        self.tags = tags

    @property
    def has_default_voice(self) -> bool:
        """There is always the built-in one."""
        return self.mouth is not None

    def start(self, row: int, work: Work) -> Job:
        match work:
            case Reply():
                conversation = self._conversation(row)
                self._heal(conversation)
                if conversation.mode == "duplex":
                    raise InvalidRequest("A duplex conversation answers unit by unit.")
                return PocketReply(self, conversation, work, self.tags)
            case Answer():
                conversation = self._conversation(row)
                self._heal(conversation)
                if conversation.mode != "duplex":
                    raise InvalidRequest("Only a duplex conversation has units to answer.")
                return PocketAnswer(self, conversation, work, self.tags)
            case _:
                return super().start(row, work)


class PocketMouth(Mouth):
    """The speech decoder with the pocket vocoder behind it."""

    def open(self, row: int, seed: int, *, temperature: float | None = None) -> Speech:
        heat = self.sampling.temperature if temperature is None else temperature
        return super().open(row, seed, temperature=SPEECH_HEAT * heat)


class CodeStreams:
    """A `CodeVocoder` as the stream per row that the model asks for.

    The windows overlap by the large model's three tokens of look-ahead, which is also what this
    vocoder needs; a window's leading repeats are left out, because a `Spoken` remembers them. The
    silent tokens that open a turn are outside the codebook and become its silence.
    """

    row_bytes = 0
    has_default_voice = True

    def __init__(
        self, vocoder: CodeVocoder, *, slots: int, silence: int, own_pitch_hz: float
    ) -> None:
        self.vocoder = vocoder
        self.silence = silence
        self.own_pitch_hz = own_pitch_hz
        self._colors = [VoiceColor()] * slots
        self._streams: list[Spoken | None] = [None] * slots

    def find(self, voice: Pcm | None) -> Future[VoiceColor]:
        """The colour of a voice (None: the built-in one). At once: it takes a few milliseconds."""
        found: Future[VoiceColor] = Future()
        found.set_result(
            VoiceColor()
            if voice is None
            else color_of(voice.samples, voice.rate_hz, self.own_pitch_hz)
        )
        return found

    def prepare(self, row: int, found: VoiceColor) -> None:
        """Give a row a colour and begin its stream."""
        self._colors[row] = found
        self.restart([row])

    def restart(self, rows: Sequence[int]) -> None:
        """Begin a turn in each row, whatever it was saying."""
        for row in rows:
            self._streams[row] = Spoken(self.vocoder, self.silence, self._colors[row])

    def speak(self, rows: Sequence[int], windows: Sequence[Window]) -> list[Wave]:
        """The next piece of each row's stream. A call that raises has changed no stream."""
        after: list[Spoken] = []
        waves: list[Wave] = []
        for row, window in zip(rows, windows, strict=True):
            kept = self._streams[row]
            stream = Spoken(self.vocoder, self.silence, self._colors[row]) if kept is None else kept
            stream = replace(stream, codes=list(stream.codes))
            has_begun = bool(stream.codes or stream.dropped)
            new = window.tokens[LOOK_AHEAD:] if has_begun else window.tokens
            waves.append(stream.push(list(new), is_last=window.is_last))
            after.append(stream)
        for row, stream in zip(rows, after, strict=True):
            self._streams[row] = stream
        return waves

    def snapshot(self, row: int) -> Spoken | None:
        """A row's stream as it is."""
        stream = self._streams[row]
        return None if stream is None else replace(stream, codes=list(stream.codes))

    def restore(self, row: int, snapshot: Spoken | None) -> None:
        """Return to a snapshot, which stays valid."""
        self._streams[row] = (
            None if snapshot is None else replace(snapshot, codes=list(snapshot.codes))
        )

    def capture(self) -> None:
        """Nothing of it is captured."""

    def unload(self) -> None:
        """Nothing is held beyond the module."""

    def close(self, row: int) -> None:
        """Forget a row's voice."""
        self._colors[row] = VoiceColor()
        self._streams[row] = None
