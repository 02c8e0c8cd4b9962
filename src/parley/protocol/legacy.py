"""What the three older dialects (chat, half-duplex, duplex) share: messages, and how sessions end.

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
"""What the close frame says."""


class PlaceFields(Wire):
    """Where a client stands in the queue. Both names of the estimate carry the same value; null:
    unknown."""

    position: int
    estimated_wait_s: Annotated[float | None, WHEN_KNOWN] = None
    eta_seconds: Annotated[float | None, EXTENSION] = None
    ticket_id: Annotated[str, EXTENSION] = ""
    queue_length: Annotated[int, EXTENSION] = 0


class Queued(PlaceFields, tag="queued"):
    """The client has to wait. Both names of the estimate carry the same value; null: unknown."""


class QueueUpdate(PlaceFields, tag="queue_update"):
    """The client still waits. Clients without extensions are sent another `queued`, the one word
    for this that the requirement texts know."""

    def published(self) -> Queued:
        return Queued(position=self.position, estimated_wait_s=self.estimated_wait_s)


class QueueDone(Wire, tag="queue_done"):
    """The wait is over."""


class Stop(Wire, tag="stop"):
    """From the client: end the session. In a chat: stop generating; the answer so far comes in
    `done` with `stopped` true."""


class Stopped(Wire, tag="stopped"):
    """The session ended because someone asked for it."""

    session_id: str = ""


class InterruptionFields(Wire):
    """How an interruption stands; see `InterruptionMessage`."""

    state: InterruptionState
    index: int = 0
    heard_ms: int = 0
    text: str = ""


class InterruptionMessage(InterruptionFields, tag="interruption"):
    """Only if `interruption` was asked for: the client plays more softly while the user may be
    interrupting (`suspected`), as before when the user is not (`dismissed`), and drops what it has
    not played when the answer has been ended (`stopped`).

    `index`: of the turn or unit. `heard_ms`, `text`: what was heard of the answer by then.
    """


class InputText(Wire, tag="input_text"):
    """From the client, only with extensions: written words and pictures (base64 files), which are
    answered aloud. Pictures alone go with what is said or written next."""

    text: Text = ""
    images: Frames = ()

    def image_bytes(self) -> tuple[bytes, ...]:
        return frame_files(self.images, field="images")


class InputTranscript(Wire, tag="input_transcript"):
    """Only where `transcribe` was asked for and the model writes down what it hears: what the user
    said. `index`: of the turn, or of the unit that begins the answer."""

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
    """Why nothing comes, or nothing to be heard, and for how long already (of `unit_late`: how
    late). Only with extensions."""


class LossFields(Unpublished):
    """Number of entries of a recording that could not be written so far."""

    entries: int


class RecordingLostMessage(LossFields, tag="recording_lost"):
    """The recording has holes: `entries` could not be written so far. Only with extensions."""


class Error(Wire, tag="error"):
    """Something went wrong; `code` is stable, the texts are for people."""

    error: str = ""
    message: Annotated[str, EXTENSION] = ""
    code: Annotated[str, EXTENSION] = "internal_error"
    param: Annotated[str | UnsetType, EXTENSION] = UNSET
    """The field at fault, if it is one."""


QueueMessage = Queued | QueueUpdate | QueueDone
TalkMessage = InputTranscript | InterruptionMessage | StatusMessage
EndMessage = RecordingLostMessage | Stopped | Error


INPUT_TEXT: Final = codec.Shape(InputText, lists=("images",))
