"""Shared parts of the three older dialects (chat, half-duplex, duplex): messages, and the ends of
sessions.

The realtime dialect has some of the same fields in messages with other names.

Source: service.md 2.4, 4.0, 4.7.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, UnsetType

from parley.protocol import codec
from parley.protocol.codec import EXTENSION, WHEN_KNOWN
from parley.protocol.values import Frames, InterruptionState, SilenceReason, Text, frame_files
from parley.protocol.wire import Wire

CloseReason = Literal["stopped", "timeout", "context_full", "server_shutdown", "error"]
"""Why a session ends, in every dialect. Names as in realtime's `session.closed`."""

CLOSE_CODES: Final[dict[CloseReason, int]] = {
    "stopped": 1000,
    "timeout": 1000,
    "context_full": 1000,
    "server_shutdown": 1001,
    "error": 1011,
}


CLOSE_SENTENCES: Final[dict[CloseReason, str]] = {
    "stopped": "stopped",
    "timeout": "timeout: the session reached its limit",
    "context_full": "context_full: the conversation is as long as it can be",
    "server_shutdown": "server_shutdown: the server is shutting down",
    "error": "error: the session failed",
}
"""Reason in the close frame."""


class PlaceFields(Wire):
    """A client's place in the queue. Both names of the estimate have the same value; null:
    unknown."""

    position: int
    estimated_wait_s: Annotated[float | None, WHEN_KNOWN] = None
    eta_seconds: Annotated[float | None, EXTENSION] = None
    ticket_id: Annotated[str, EXTENSION] = ""
    queue_length: Annotated[int, EXTENSION] = 0


class Queued(PlaceFields, tag="queued"):
    """The client has to wait. Both names of the estimate have the same value; null: unknown."""


class QueueUpdate(PlaceFields, tag="queue_update"):
    """The client still waits. Clients without extensions are sent another `queued`, the only
    published message for this."""

    def published(self) -> Queued:
        return Queued(position=self.position, estimated_wait_s=self.estimated_wait_s)


class QueueDone(Wire, tag="queue_done"):
    """The wait is over."""


class Stop(Wire, tag="stop"):
    """From the client: end the session. In a chat: stop generating; `done` contains the answer so
    far, with `stopped` true."""


class Stopped(Wire, tag="stopped"):
    """The session ended on request."""

    session_id: str = ""


class InterruptionFields(Wire):
    """State of an interruption; see `InterruptionMessage`."""

    state: InterruptionState
    index: int = 0
    heard_ms: int = 0
    text: str = ""


class InterruptionMessage(InterruptionFields, tag="interruption"):
    """Only if the client requested `interruption`: the client lowers the volume while the user may
    be interrupting (`suspected`), restores it if the user is not (`dismissed`), and discards what
    it has not played if the answer was stopped (`stopped`). `index`: of the turn or unit.
    `heard_ms`, `text`: the part of the answer that was heard by then.
    """


class InputText(Wire, tag="input_text"):
    """From the client, only with extensions: written text and pictures (base64 files), which are
    answered aloud. Pictures alone belong to the next speech or text."""

    text: Text = ""
    images: Frames = ()

    def image_bytes(self) -> tuple[bytes, ...]:
        return frame_files(self.images, field="images")


class InputTranscript(Wire, tag="input_transcript"):
    """Only if the client requested `transcribe` and the model transcribes: the user's words.
    `index`: of the turn, or of the unit with which the answer starts."""

    index: int
    text: str


class Unpublished(Wire):
    """A message that only clients with extensions receive."""

    def published(self) -> None:
        """See `codec.encode_for`."""


class StatusFields(Unpublished):
    """Why nothing comes, or nothing to be heard, and for how long already (of `unit_late`: how
    late)."""

    reason: SilenceReason
    elapsed_ms: int = 0


class StatusMessage(StatusFields, tag="status"):
    """Why there is no output, or no audible output, and for how long already (for `unit_late`: how
    late). Only with extensions."""


class LossFields(Unpublished):
    """Number of recording entries that could not be written so far."""

    entries: int


class RecordingLostMessage(LossFields, tag="recording_lost"):
    """The recording has gaps: `entries` could not be written so far. Only with extensions."""


class Error(Wire, tag="error"):
    """An error; `code` is stable, the texts are for people."""

    error: str = ""
    message: Annotated[str, EXTENSION] = ""
    code: Annotated[str, EXTENSION] = "internal_error"
    param: Annotated[str | UnsetType, EXTENSION] = UNSET
    """The invalid field, if the error is about one."""


QueueMessage = Queued | QueueUpdate | QueueDone
TalkMessage = InputTranscript | InterruptionMessage | StatusMessage
EndMessage = RecordingLostMessage | Stopped | Error


INPUT_TEXT: Final = codec.Shape(InputText, lists=("images",))
