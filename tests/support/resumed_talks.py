"""The same short conversation in every dialect that can be resumed. It runs in lock-step, so that
its result does not depend on the number of cuts."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.resuming import ResumingClient
from tests.support.talking import LOUD, QUIET, Message, b64, pcm16, tone
from tests.support.timeline import Part, silence, sound, speak

UNITS = [LOUD, tone(0.3), QUIET, QUIET, tone(0.1), QUIET]
Client = TypeVar("Client", bound=ResumingClient)
VARIES = frozenset(
    {
        *("session_id", "recording_session_id", "current_time", "server_send_ts", "metrics"),
        *("cost_llm_ms", "cost_tts_prep_ms", "cost_tts_ms", "cost_token2wav_ms", "cost_all_ms"),
        *("wall_clock_ms", "response_id", "event_id", "session", "usage"),
        *("item_id", "previous_item_id", "id", "conversation_id"),
    }
)
"""Fields that differ between two runs of one conversation."""


def comparable(messages: list[Message]) -> list[Message]:
    """The messages without fields that differ between two runs."""
    return [_comparable(message) for message in messages]


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _comparable(value[name]) for name in value.keys() - VARIES}


MAILBOX_UNITS = 8
"""`limits.mailbox_units` for these conversations. OpenAI Live sends nothing after it has listened
to a unit, so on a busy machine more than two units wait, and with the default the oldest would be
dropped."""

Step = Message | str
"""A message that the client sends, or the type or `input_id` of the message for which it waits."""


def matches(heard: Message, wanted: str) -> bool:
    """True if a message is the one for which a step waits."""
    return bool(heard["type"].startswith(wanted)) or heard.get("input_id") == wanted


def spoken_turn(after_s: float) -> list[Step]:
    """The user speaks, then is silent for `after_s`."""
    said = sound(silence(0.6), speak(1.0), silence(after_s))
    pieces = [b64(said.slice(at, at + 8000)) for at in range(0, len(said), 8000)]
    return [*({"type": "audio_chunk", "audio_base64": piece} for piece in pieces), "turn_done"]


def in_units(name: str, answer: str) -> list[Step]:
    """Units, each sent when the previous one has been answered."""
    field = {"audio_chunk": "audio_base64"}.get(name, "audio")
    return [step for unit in UNITS for step in ({"type": name, field: unit}, answer)]


LIVE = "session.input_audio"
# A mute is answered immediately, so it serves as a mark when the model is silent.
MARK: list[Step] = [
    *({"type": f"{LIVE}.mute"}, f"{LIVE}.muted"),
    *({"type": f"{LIVE}.unmute"}, f"{LIVE}.unmuted"),
]


def live_sound(*parts: Part) -> Message:
    return {"type": f"{LIVE}.append", "audio": pcm16(sound(*parts))}


def written(number: int) -> Message:
    content = [{"type": "input_text", "text": f"Say {number}."}]
    item = {"id": f"item_w{number}", "type": "message", "role": "user", "content": content}
    return {"type": "conversation.item.create", "item": item}


def openai_turns() -> Iterator[Step]:
    """A spoken and a written turn, twice; the client commits each turn."""
    update: dict[str, Any] = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    update |= {"max_output_tokens": 12}
    yield {"type": "session.update", "session": update}
    yield "session.updated"
    for number in range(2):
        for _ in range(2):
            yield {"type": "input_audio_buffer.append", "audio": pcm16(sound(speak(0.5)))}
        yield {"type": "input_audio_buffer.commit"}
        yield {"type": "response.create"}
        yield "response.done"
        yield written(number)
        yield {"type": "response.create", "response": {"output_modalities": ["text"]}}
        yield "response.done"
    yield {"type": "conversation.item.delete", "item_id": "item_w0"}
    yield "conversation.item.deleted"
    yield written(2)
    yield {"type": "response.create", "response": {"output_modalities": ["text"]}}
    yield "response.done"
    yield LAST_OF_ALL


LAST_OF_ALL = "rate_limits.updated"
"""Type of the last message in a dialect without a message for leaving: the client then
disconnects."""


@dataclass(frozen=True)
class ResumedTalk:
    """A whole conversation: its path, its first message, and the following steps."""

    path: Callable[[], str]
    first: Message
    steps: list[Step]
    names_session: bool = False

    def session_id(self, path: str) -> str:
        return path.rpartition("/")[2] if self.names_session else ""


TALKS: dict[str, ResumedTalk] = {
    "half_duplex": ResumedTalk(
        lambda: f"/ws/half_duplex/hdx_{secrets.token_hex(8)}",
        {"type": "prepare", "resume": True},
        # The server ignores the first half second.
        [*spoken_turn(1.5), *spoken_turn(1.5), {"type": "stop"}, "stopped"],
        names_session=True,
    ),
    "duplex": ResumedTalk(
        lambda: f"/ws/duplex/adx_{secrets.token_hex(8)}",
        {"type": "prepare", "resume": True},
        [*in_units("audio_chunk", "result"), {"type": "stop"}, "stopped"],
        names_session=True,
    ),
    "realtime": ResumedTalk(
        lambda: "/v1/realtime?mode=audio",
        {"type": "session.update", "session": {"instructions": "Be kind.", "resume": True}},
        [
            *in_units("input_audio_buffer.append", "response"),
            *({"type": "session.close"}, "session.closed"),
        ],
    ),
    "minicpmo_v2": ResumedTalk(
        lambda: "/v1/realtime?mode=audio",
        {"type": "session.init", "payload": {"system_prompt": "Be kind.", "resume": True}},
        [
            *(
                step
                for number, unit in enumerate(UNITS)
                for step in ({"type": "input.append", "input": {"audio": unit}}, f"input_{number}")
            ),
            *({"type": "session.close"}, "session.closed"),
        ],
    ),
    # The server sends nothing while the model listens. The first second is a little longer, because
    # the resampler keeps the end of its input.
    "openai_live": ResumedTalk(
        lambda: "/v1/live/sessions",
        {"type": "session.start", "session": {"model": "parrot", "resume": True}},
        [
            *(live_sound(speak(1.0), silence(0.1)), *MARK),
            *(live_sound(speak(0.5), silence(0.5)), *MARK),
            *(live_sound(silence(1.0)), *MARK),
            *(live_sound(silence(1.0)), "session.output_audio.delta", *MARK),
            *(live_sound(silence(1.0)), "session.output_audio.delta", *MARK),
            *({"type": "session.close"}, "session.closed"),
        ],
    ),
    "openai_realtime": ResumedTalk(
        lambda: "/v1/realtime?model=parrot",
        {"type": "session.update", "session": {"type": "realtime", "resume": True}},
        list(openai_turns()),
    ),
}


async def go_through(client: ResumingClient, steps: list[Step]) -> None:
    """Run the given steps of a started conversation."""
    for step in steps:
        if isinstance(step, str):
            while not matches(await client.hear(), step):
                pass
        else:
            await client.say(step)
    if steps[-1] == LAST_OF_ALL:
        await client.leave()


async def whole_talk(client: Client, name: str, path: str) -> Client:
    """Run a conversation from start to end."""
    spoken = TALKS[name]
    try:
        await client.begin(session_id=spoken.session_id(path), first=spoken.first)
        await go_through(client, spoken.steps)
    finally:
        await client.close()
    return client


async def ready_session(address: Callable[[str], str]) -> ResumingClient:
    """A duplex session that is ready and has not received audio yet.

    Args:
        address: returns the URL of the server's socket for a path.
    """
    spoken = TALKS["duplex"]
    path = spoken.path()
    client = ResumingClient(address(path))
    await client.begin(session_id=spoken.session_id(path), first=spoken.first)
    return client


async def unit(client: ResumingClient) -> Message:
    """Send one unit; returns the answer."""
    await client.say({"type": "audio_chunk", "audio_base64": UNITS[0]})
    return await client.hear()
