"""The session object of OpenAI Realtime: its current values, and the settings for the runner."""

from __future__ import annotations

import base64
import copy
import zlib
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from parley.dialects.events import HalfDuplexSetup, TurnDetection
from parley.dialects.openai_fields import (
    FIELDS,
    INPUT_FIELDS,
    OUTPUT_FIELDS,
    TOOL_FIELDS,
    TRANSCRIPTION_FIELDS,
    SemanticVad,
    ServerVad,
    check_names,
    checked_part,
    object_of,
    refusal,
    shown,
)
from parley.dialects.sound import OPENAI_RATES
from parley.errors import InvalidRequest
from parley.protocol import values
from parley.protocol.codec import Converter
from parley.protocol.openai import BUILT_IN_VOICES

_function = Converter(values.ToolFunction)

OWN_VOICE: Final = "default"
PCM: Final = {"type": "audio/pcm", "rate": 24_000}
LIMIT_TOKENS: Final = 2048
"""Maximum length of an answer; `inf` means this."""
EAGER_SILENCE_MS: Final = {"low": 1200, "medium": 800, "auto": 800, "high": 400}
DEFAULT_VAD: Final = values.VadOptions(
    threshold=0.5, min_silence_duration_ms=500, eagerness="medium"
)
SERVER_VAD: Final[dict[str, Any]] = msgspec.to_builtins(ServerVad())
SEMANTIC_VAD: Final[dict[str, Any]] = msgspec.to_builtins(SemanticVad())
SETTINGS_PARAMETER: Final = "session_settings"
"""Name of the parameter with the settings of a client secret, `packed`."""
PACKED_CHARS: Final = 5000
"""Maximum length of packed settings, which are sent in one header as part of a key."""


@dataclass(frozen=True, slots=True)
class RealtimeSettings:
    """A session's settings for the runner."""

    setup: HalfDuplexSetup
    detection: TurnDetection | None


def default_session(
    session_id: str, model: str, expires_s: float, *, kind: str = "realtime"
) -> dict[str, Any]:
    """Initial values of a session, complete for both kinds; see `sent`."""
    return {
        "type": kind,
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "output_modalities": ["audio"],
        "instructions": values.DEFAULT_SYSTEM_PROMPT,
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "auto",
        "prompt": None,
        "include": None,
        "store": True,
        "expires_at": int(expires_s),
        "audio": {
            "input": {
                "format": dict(PCM),
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": dict(SERVER_VAD),
            },
            "output": {"format": dict(PCM), "voice": OWN_VOICE, "speed": 1.0},
        },
    }


def sent(session: dict[str, Any]) -> dict[str, Any]:
    """The session as its client receives it: a transcription session has only an input. `store`,
    which OpenAI's sessions lack, is not in it."""
    copied = copy.deepcopy(session)
    del copied["store"]
    if session["type"] == "realtime":
        return copied
    sound = copied["audio"]["input"]
    for name in ("create_response", "interrupt_response", "idle_timeout_ms"):
        (sound["turn_detection"] or {}).pop(name, None)
    return {
        **{name: copied[name] for name in ("type", "id", "include", "expires_at")},
        "object": "realtime.transcription_session",
        "audio": {"input": sound},
    }


def packed(changes: dict[str, Any]) -> str:
    """Settings of a client secret, short enough for a header.

    Raises:
        InvalidRequest: they are too long, or a text in them has half of a surrogate pair.
    """
    try:
        encoded = msgspec.json.encode(changes)
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"session must be Unicode text, got {error.object[error.start]!r} alone, which is half "
            "of a surrogate pair.",
            field="session",
        ) from error
    found = base64.urlsafe_b64encode(zlib.compress(encoded, 9)).decode()
    if len(found) > PACKED_CHARS:
        raise InvalidRequest(
            f"session must have at most {PACKED_CHARS} characters when compressed, got "
            f"{len(found)}: send the rest in session.update.",
            field="session",
        )
    return found


def unpacked(text: str) -> dict[str, Any]:
    """The inverse of `packed`."""
    changes: dict[str, Any] = msgspec.json.decode(zlib.decompress(base64.urlsafe_b64decode(text)))
    return changes


def merged(
    session: dict[str, Any], changes: dict[str, Any], *, calls_tools: bool
) -> dict[str, Any]:
    """The session with a client's changes, without those that have no effect here (noise reduction,
    truncation, tracing, `include`), and without tools if the model calls none.

    Raises:
        InvalidRequest: a change is not possible; `field` is its path.
    """
    kind = changes.get("type") or session["type"]
    if kind not in ("realtime", "transcription"):
        raise refusal("session.type", '"realtime" or "transcription"', kind)
    transcribes = kind == "transcription"
    check_names(changes, TRANSCRIPTION_FIELDS if transcribes else FIELDS, "session")
    new = copy.deepcopy(session) | {"type": kind}
    for name in ("output_modalities", "instructions", "max_output_tokens"):
        if changes.get(name) is not None:
            new[name] = changes[name]
    if changes.get("tool_choice") is not None:
        new["tool_choice"] = checked_part(
            changes["tool_choice"], "tool_choice", "session.tool_choice"
        )
    if calls_tools and changes.get("tools") is not None:
        tools_of(changes["tools"], "session")
        new["tools"] = changes["tools"]
    for name in ("tracing", "truncation", "include"):
        if name in changes:
            checked_part(changes[name], name, f"session.{name}")
    if changes.get("store") is not None:
        if not isinstance(changes["store"], bool):
            raise refusal("session.store", "true or false", changes["store"])
        new["store"] = changes["store"]
    if changes.get("prompt") is not None:
        raise InvalidRequest(
            "prompt is not supported: this server stores no prompts.", field="session.prompt"
        )
    audio = object_of(changes.get("audio"), "session.audio")
    parts = {"input"} if transcribes else {"input", "output"}
    check_names(audio, frozenset(parts), "session.audio")
    _merge_input(new["audio"]["input"], object_of(audio.get("input"), "session.audio.input"))
    _merge_output(new["audio"]["output"], object_of(audio.get("output"), "session.audio.output"))
    return new


def _merge_input(current: dict[str, Any], changes: dict[str, Any]) -> None:
    where = "session.audio.input"
    check_names(changes, INPUT_FIELDS, where)
    if changes.get("format") is not None:
        current["format"] = format_of(changes["format"], f"{where}.format")
    if "transcription" in changes:
        current["transcription"] = checked_part(
            changes["transcription"], "transcription", f"{where}.transcription"
        )
    if "noise_reduction" in changes:
        checked_part(changes["noise_reduction"], "noise_reduction", f"{where}.noise_reduction")
    if "turn_detection" in changes:
        current["turn_detection"] = _detection(
            changes["turn_detection"], current["turn_detection"], f"{where}.turn_detection"
        )


def is_own_voice(voice: str) -> bool:
    """True if this name stands for the server's own voice."""
    return voice == OWN_VOICE or voice in BUILT_IN_VOICES


def voice_of(changes: dict[str, Any]) -> str | None:
    """The registered voice that a session or a response names; None if there is none or it is
    invalid."""
    audio = changes.get("audio")
    output = audio.get("output") if isinstance(audio, dict) else None
    named = _voice_in(output) if isinstance(output, dict) else None
    return named if isinstance(named, str) and not is_own_voice(named) else None


def _voice_in(output: dict[str, Any]) -> Any:
    """The voice of an `audio.output`, which is a name or an object with an `id`."""
    voice = output.get("voice")
    return voice.get("id") if isinstance(voice, dict) else voice


def named_voice(output: dict[str, Any], where: str) -> str | None:
    """The voice that an `audio.output` names; None: none.

    Raises:
        InvalidRequest: it is not a name.
    """
    voice = _voice_in(output)
    if voice is not None and not (isinstance(voice, str) and 0 < len(voice) <= 200):
        raise refusal(f"{where}.voice", "a name of 1 to 200 characters", voice)
    return voice


def output_of(session: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """Format and voice of one response.

    Raises:
        InvalidRequest: they are invalid; `field` is the path.
    """
    audio = object_of(response.get("audio"), "response.audio")
    check_names(audio, frozenset({"output"}), "response.audio")
    output: dict[str, Any] = copy.deepcopy(session["audio"]["output"])
    where = "response.audio.output"
    _merge_output(output, object_of(audio.get("output"), where), where)
    return output


def _merge_output(
    current: dict[str, Any], changes: dict[str, Any], where: str = "session.audio.output"
) -> None:
    check_names(changes, OUTPUT_FIELDS, where)
    if changes.get("format") is not None:
        current["format"] = format_of(changes["format"], f"{where}.format")
    current["voice"] = named_voice(changes, where) or current["voice"]
    if changes.get("speed") not in (None, 1, 1.0):
        raise InvalidRequest(
            f"{where}.speed must be 1.0 in Realtime, got {shown(changes['speed'])}: use "
            "/v1/audio/speech for others.",
            field=f"{where}.speed",
        )


_FORMAT_NAMES: Final = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
"""Names of formats in the beta."""


def format_of(value: Any, where: str) -> dict[str, Any]:
    """A complete audio format.

    Raises:
        InvalidRequest: there is no format with this name or rate.
    """
    given = {"type": value} if isinstance(value, str) else object_of(value, where)
    name = str(given.get("type"))
    name = _FORMAT_NAMES.get(name, name)
    rate = OPENAI_RATES.get(name)
    if rate is None or given.get("rate", rate) != rate:
        formats = "audio/pcm with a rate of 24000, audio/pcmu or audio/pcma"
        raise refusal(where, formats, value)
    return dict(PCM) if name == "audio/pcm" else {"type": name}


def _detection(value: Any, current: dict[str, Any] | None, where: str) -> dict[str, Any] | None:
    if value is None:
        return None
    given = object_of(value, where)
    kind = given.get("type", (current or SERVER_VAD)["type"])
    if kind not in ("server_vad", "semantic_vad"):
        raise InvalidRequest(
            f"{where}.type must be server_vad or semantic_vad, got {shown(kind)}.", field=where
        )
    defaults = SERVER_VAD if kind == "server_vad" else SEMANTIC_VAD
    check_names(given, frozenset(defaults), where)
    base = current if current is not None and current["type"] == kind else defaults
    checked: dict[str, Any] = checked_part({**base, **given, "type": kind}, "turn_detection", where)
    # Nothing happens automatically when the user is silent.
    return checked | ({"idle_timeout_ms": None} if kind == "server_vad" else {})


def settings_of(session: dict[str, Any], *, can_choose: bool = False) -> RealtimeSettings:
    """A session's settings for the runner.

    Raises:
        InvalidRequest: a value out of range.
    """
    speaks = is_spoken(session["output_modalities"], "session")
    instructions = instructions_of(session["instructions"])
    voice = session["audio"]["output"]["voice"]
    detection = _turn_detection(session["audio"]["input"]["turn_detection"])
    transcribes = session["type"] == "transcription"
    if transcribes and detection is not None:
        # Every turn is transcribed; there are no answers to interrupt.
        detection = TurnDetection(
            detection.vad, answers=False, interruption=values.InterruptionOptions(mode="off")
        )
    limit = limit_of(session["max_output_tokens"], "session")
    return RealtimeSettings(
        setup=HalfDuplexSetup(
            system=(values.TextPart(instructions),),
            voice_name=None if is_own_voice(voice) else voice,
            wants_speech=speaks and not transcribes,
            wants_recording=session["store"],
            vad=DEFAULT_VAD if detection is None else detection.vad,
            generation=values.Generation(max_new_tokens=limit or LIMIT_TOKENS),
            tools=offered_tools(
                session["tools"], session["tool_choice"], "session", can_choose=can_choose
            ),
            transcribes=transcribes,
        ),
        detection=detection,
    )


def instructions_of(value: Any) -> str:
    """`session.instructions`, or the default if they are empty.

    Raises:
        InvalidRequest: not a text, or too long.
    """
    most = values.TEXT_LIMIT_CHARS
    if value is not None and not (isinstance(value, str) and len(value) <= most):
        raise InvalidRequest(
            f"session.instructions must be a string of at most {most} characters.",
            field="session.instructions",
        )
    return value or values.DEFAULT_SYSTEM_PROMPT


def is_spoken(modalities: Any, where: str) -> bool:
    """True if `output_modalities` request audio.

    Raises:
        InvalidRequest: they request neither audio nor text.
    """
    if modalities not in (["text"], ["audio"]):
        raise refusal(f"{where}.output_modalities", '["audio"] or ["text"]', modalities)
    return bool(modalities == ["audio"])


def offered_tools(
    tools: Any, choice: Any, where: str, *, can_choose: bool
) -> tuple[values.Tool, ...]:
    """The functions that the model may call.

    Args:
        can_choose: True if the model can be forced to call one.

    Raises:
        InvalidRequest: they are invalid, or the choice cannot be satisfied.
    """
    found = tools_of(tools, where)
    field = f"{where}.tool_choice"
    if found and not can_choose and choice not in ("auto", "none"):
        raise InvalidRequest(
            'The loaded model cannot be forced to call a tool: tool_choice must be "auto" or '
            f'"none", got {shown(choice)}.',
            field=field,
        )
    return values.chosen_tools(found, choice, field=field) if found else ()


def tools_of(value: Any, where: str) -> tuple[values.Tool, ...]:
    """Functions as OpenAI Realtime describes them.

    Raises:
        InvalidRequest: they are invalid.
    """
    field = f"{where}.tools"
    if not isinstance(value, list) or len(value) > values.TOOLS_MOST:
        raise InvalidRequest(f"{field} must be a list of at most {values.TOOLS_MOST}.", field=field)
    found = []
    for index, each in enumerate(value):
        at = f"{field}[{index}]"
        given = object_of(each, at)
        kind = given.get("type", "function")
        if kind != "function":
            raise refusal(f"{at}.type", '"function"', kind)
        check_names(given, TOOL_FIELDS, at)
        function = {name: given.get(name) for name in ("name", "description", "parameters")}
        try:
            found.append(values.Tool(function=_function.convert(function)))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{at} is not a function: {error}.", field=at) from None
    return tuple(found)


def limit_of(value: Any, where: str) -> int | None:
    """The requested maximum length of an answer; None: not set.

    Raises:
        InvalidRequest: neither a number nor `inf`.
    """
    if value is None:
        return None
    if value == "inf":
        return LIMIT_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        expected = 'an integer of at least 1, or "inf"'
        raise refusal(f"{where}.max_output_tokens", expected, value)
    return min(value, LIMIT_TOKENS)


def _turn_detection(value: dict[str, Any] | None) -> TurnDetection | None:
    """`value`: as `checked_part` returned it."""
    if value is None:
        return None
    if value["type"] == "server_vad":
        silence_ms, threshold = (
            SERVER_VAD[name] if value[name] is None else value[name]
            for name in ("silence_duration_ms", "threshold")
        )
        # A client that sets no silence accepts any that fits the speech.
        is_default = silence_ms == DEFAULT_VAD.min_silence_duration_ms
        judged: values.Eagerness | Literal["off"] = "medium" if is_default else "off"
    else:
        eagerness: values.Eagerness | Literal["auto"] = value["eagerness"] or "auto"
        silence_ms, threshold = EAGER_SILENCE_MS[eagerness], 0.5
        judged = "medium" if eagerness == "auto" else eagerness
    vad = values.VadOptions(
        threshold=min(max(threshold, 0.05), 0.99),
        min_silence_duration_ms=min(max(int(silence_ms), 100), 5000),
        eagerness=judged,
    )
    return TurnDetection(
        vad,
        answers=value["create_response"] is not False,
        interruption=values.InterruptionOptions(
            mode="off" if value["interrupt_response"] is False else values.BARGE_IN.mode,
            min_speech_ms=values.BARGE_IN.min_speech_ms,
            sensitivity=min(max(round((0.95 - threshold) / 0.9, 3), 0.0), 1.0),
            # A client that wants semantic detection also wants acknowledgements to be recognised.
            backchannel="words" if value["type"] == "semantic_vad" else values.BARGE_IN.backchannel,
        ),
    )
