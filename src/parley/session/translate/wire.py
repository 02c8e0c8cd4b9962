"""What the translators share: sound as base64, a dialect's answers as outgoing messages, and how a
session of any dialect ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

import msgspec

from parley.engine.work import DuplexOptions
from parley.errors import InvalidPayload, ParleyError, TooLarge
from parley.media.pcm import Pcm
from parley.protocol import codec
from parley.protocol.legacy import CloseReason
from parley.protocol.values import Answer, DuplexConfig
from parley.session.events import Ended, Sound
from parley.session.life import Outgoing

T = TypeVar("T")


class Closed(Protocol):
    """A dialect's words for the end of a session."""

    def __call__(
        self, reason: CloseReason, *, session_id: str = "", elapsed_s: float = 0.0
    ) -> Answer: ...


def pcm_text(pcm: Pcm | None) -> str | None:
    """Base64 of little-endian float32 samples; None for no sound."""
    if pcm is None or not len(pcm):
        return None
    return codec.to_base64(pcm.samples.astype("<f4", copy=False).tobytes())


def spoken(message: msgspec.Struct) -> Outgoing:
    """One message; the conversation goes on."""
    return Outgoing((codec.encode(message),))


def closing(answer: Answer) -> Outgoing:
    """A dialect's answer to an error or an end."""
    return Outgoing(answer.frames(), answer.close_code)


def ending(
    ended: Ended, answer: Callable[[ParleyError], Answer], closed: Closed, *, session_id: str = ""
) -> Outgoing:
    """The last word: of the error that closed the session, else of the reason. Whoever left, or has
    got everything, is told nothing more."""
    if ended.error is not None:
        told = answer(ended.error)
        if told.close_code is not None:
            return closing(told)
    match ended.reason:
        case "done" | "disconnected":
            return Outgoing(close_code=1000)
        case "stopped" | "timeout" | "context_full" | "server_shutdown" | "error" as reason:
            return closing(closed(reason, session_id=session_id, elapsed_s=ended.elapsed_s))
        case _ as never:
            assert_never(never)


def sound(data: bytes | None) -> Sound | None:
    """A reference voice, if there is one."""
    return None if data is None else Sound(data)


def unit_options(config: DuplexConfig) -> DuplexOptions:
    """What a client chose about its units, for the two dialects of units."""
    return DuplexOptions(
        generate_audio=config.generate_audio,
        ls_mode=config.ls_mode,
        force_listen_count=config.force_listen_count,
        max_new_speak_tokens_per_chunk=config.max_new_speak_tokens_per_chunk,
        decode_mode=config.decode_mode,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        text_repetition_penalty=config.text_repetition_penalty,
        text_repetition_window_size=config.text_repetition_window_size,
        length_penalty=config.length_penalty,
        listen_prob_scale=config.listen_prob_scale,
        listen_top_k=config.listen_top_k,
        tts_temperature=config.tts_temperature,
    )


def within(payload: Callable[[], T]) -> T:
    """Decode a part of a message; one that is too large spoils this message, not the connection.

    Raises:
        InvalidPayload: as `payload` does, and instead of `TooLarge`, which closes connections.
    """
    try:
        return payload()
    except TooLarge as error:
        raise InvalidPayload(str(error), field=error.what) from error
