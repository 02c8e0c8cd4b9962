"""Shared by the two dialects of MiniCPM-o's realtime calls: queue messages, setup, units.

The newer dialect uses other names for the same content: both convert their messages to the structs
of `protocol/realtime.py`.
"""

from __future__ import annotations

from parley.dialects.base import Dialect, Reply
from parley.dialects.events import AudioInput, DuplexSetup
from parley.dialects.sound import reference, within
from parley.errors import ParleyError
from parley.media.pcm import Pcm, from_float32_bytes
from parley.protocol import realtime
from parley.protocol.kinds import Kind
from parley.protocol.values import CONTEXT_TOKENS, check_samples


class RealtimeCallDialect(Dialect):
    """Units of audio and video frames, in a call with a total time limit."""

    kind = Kind.OMNI_DUPLEX
    app_id = "realtime"
    queue_words = (realtime.SessionQueued, realtime.SessionQueueUpdate, realtime.SessionQueueDone)
    stops = frozenset({"session.close"})
    is_timed_call = True
    context_tokens = CONTEXT_TOKENS
    prompt_room_tokens = realtime.PROMPT_ROOM_TOKENS

    @property
    def least_samples(self) -> int:
        """Limits of the audio in one message."""
        return realtime.CHUNK_LEAST_SAMPLES if self.extensions else realtime.APPEND_LEAST_SAMPLES

    def shutting_down(self, failure: ParleyError) -> Reply:
        return self.closed("server_shutdown")

    def unit_of(self, message: realtime.Append, pcm: Pcm | None = None) -> AudioInput:
        """A unit as an event; frames count in video calls only.

        Args:
            pcm: its audio; None: in the published format.
        """
        sees_video = self.context.kind is Kind.OMNI_DUPLEX
        if pcm is None:
            pcm = from_float32_bytes(message.audio_bytes(self.least_samples))
        check_samples(len(pcm), field="audio", most=realtime.APPEND_MOST_SAMPLES)
        return AudioInput(
            pcm,
            frames=within(message.frame_bytes) if sees_video else (),
            force_listen=message.force_listen,
            max_slices=message.max_slice_nums,
            playback=message.playback or None,
        )


def setup_of(session: realtime.SessionOptions, *, cuts_by_time: bool) -> DuplexSetup:
    """The setup of a call."""
    return DuplexSetup(
        prompt=session.instructions,
        voice=reference(within(session.voice_bytes)),
        tts_voice=reference(within(session.tts_voice_bytes)),
        voice_name=session.ref_audio_path,
        max_slices=session.max_slice_nums,
        options=session.voice_config,
        interruption=session.interruption,
        cuts_by_time=cuts_by_time,
        wants_recording=session.record,
    )
