"""Data that pages request when they load: defaults, the default voice, and `/api/presets`: prompts
by mode, and their audio."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.exceptions import HTTPException

from parley import logs
from parley.errors import BadInput
from parley.gateway.http.bodies import shown
from parley.gateway.http.routing import Router
from parley.gateway.runtime import GatewayRuntime
from parley.library.presets import SOUND_LIMIT_S, Preset, Presets, duration_s
from parley.library.voices import default_voice_path
from parley.media.pcm import Pcm, to_float32_bytes
from parley.media.reference import read_voice
from parley.protocol import codec

log = logs.get(__name__)


class Defaults(msgspec.Struct, kw_only=True):
    """Initial options of pages; without `default_lang` they use the browser's language."""

    playback_delay_ms: Annotated[int, Meta(examples=[200])]
    chat_vocoder: str = "token2wav"
    default_lang: Annotated[Literal["zh", "en"] | UnsetType, Meta(examples=["zh"])] = UNSET
    api_hosts: Annotated[
        list[str],
        Meta(
            description="other servers that `?api=` may name", examples=[["talk.example.org:8006"]]
        ),
    ]
    model: Annotated[
        str,
        Meta(
            description="the workers' model, without the folder it lies in; empty while unknown",
            examples=["pocket"],
        ),
    ]
    session_limits_s: Annotated[
        dict[Literal["audio", "video"], float],
        Meta(
            description="longest realtime session by mode",
            examples=[{"audio": 600.0, "video": 300.0}],
        ),
    ]
    recording: Annotated[
        bool, Meta(description="whether sessions are recorded if the client agrees")
    ]
    retention_days: Annotated[
        int,
        Meta(description="how long recordings are kept; -1: until they are deleted"),
    ]


class VoiceInfo(msgspec.Struct, kw_only=True):
    """A voice: mono float32 samples at 16 kHz, base64."""

    name: Annotated[str, Meta(examples=["Anna"])]
    duration: Annotated[float, Meta(description="seconds")]
    sample_rate: Annotated[int, Meta(examples=[16000])]
    samples: Annotated[int, Meta(examples=[2])]
    base64: Annotated[str, Meta(examples=["AAAAAAAAgD4="])]


def describe(name: str, pcm: Pcm) -> VoiceInfo:
    return VoiceInfo(
        name=name,
        duration=round(pcm.duration_s, 3),
        sample_rate=pcm.rate_hz,
        samples=len(pcm),
        base64=codec.to_base64(to_float32_bytes(pcm)),
    )


def routes(runtime: GatewayRuntime) -> Router:
    settings, model = runtime.settings, runtime.settings.model
    router = Router(tag="pages")
    default_voice: list[VoiceInfo] = []

    @router.get("/api/frontend_defaults")
    async def defaults() -> Defaults:
        """Data that pages need before a session: the model, its limits, and what is recorded."""
        limits = runtime.settings.limits
        pool = runtime.dispatcher.worker_pool
        # Workers that the gateway did not start may have other settings than it has.
        loading = model.public_name if pool.loading_workers else ""
        return Defaults(
            playback_delay_ms=settings.gateway.playback_delay_ms,
            default_lang=settings.gateway.lang or UNSET,
            api_hosts=list(settings.gateway.api_hosts),
            model=pool.model or loading,
            session_limits_s={
                "audio": limits.realtime_audio_s,
                "video": limits.realtime_video_s,
            },
            recording=settings.storage.recording,
            retention_days=settings.storage.retention_days,
        )

    @router.get("/api/default_ref_audio", errors=(404,))
    async def voice() -> VoiceInfo:
        """The default voice of pages: the configured one, else the checkpoint's, else the one
        included in parley. 404 if it cannot be read."""
        if not default_voice:
            path = default_voice_path(model.default_voice, model.name)
            limit_s = settings.limits.reference_audio_s
            try:
                # Decoding takes a while, and the event loop serves live calls.
                read = await asyncio.to_thread(read_voice, path, limit_s=limit_s)
            except (OSError, BadInput) as error:
                log.error("default_voice_unreadable", why=str(error))
                raise HTTPException(404, "There is no default voice.") from None
            default_voice[:] = [describe(path.stem, read)]
        return default_voice[0]

    return router


PRESET_EXAMPLE: Final = {
    "id": "guide",
    "name": "Museum guide",
    "description": "Knows the server",
    "order": 15,
    "system_prompt": "You are a guide in a museum. Keep it short.",
    "ref_audio": {"name": "anna", "duration": 4.2, "path": "anna.wav", "data": None},
}


Listed = dict[str, list[dict[str, Any]]] | list[dict[str, Any]]
"""Descriptions of presets by mode, or of all."""


class PresetSound(msgspec.Struct, kw_only=True):
    """Audio of a preset: base64 float32 at 16 kHz."""

    data: Annotated[str, Meta(examples=["AAAAAAAAgD4="])]
    name: Annotated[str, Meta(examples=["anna"])]
    duration: Annotated[float, Meta(description="seconds")]


class PresetSounds(msgspec.Struct, kw_only=True):
    """Audio of the content in order, and the voice."""

    system_content_audio: list[PresetSound] = []
    ref_audio: PresetSound | UnsetType = UNSET


def preset_routes(runtime: GatewayRuntime) -> Router:
    presets = runtime.stores.presets
    router = Router(tag="pages")

    @router.get(
        "/api/presets",
        name="presets",
        answer=shown({"turnbased": [PRESET_EXAMPLE]}, Listed),
    )
    async def by_mode(
        format: Literal["modes", "list"] = "modes",
    ) -> Listed:
        """Presets by mode, in order, without their audio; `?format=list` returns one flat list."""
        return await asyncio.to_thread(_listed, presets, format)

    @router.get("/api/presets/{mode}/{preset_id}/audio", errors=(404,))
    async def sounds(mode: str, preset_id: str) -> PresetSounds:
        """The audio of one preset."""
        try:
            found = await asyncio.to_thread(_sounds, presets, mode, preset_id)
        except (OSError, BadInput) as error:
            log.error("preset_sound_unreadable", mode=mode, why=str(error))
            found = None
        if found is None:
            raise HTTPException(404, "There is no such preset, or it has no sound.")
        return found

    return router


def _listed(presets: Presets, format: str) -> Listed:
    by_mode: dict[str, list[dict[str, Any]]] = {
        mode: [_described(preset) for preset in found] for mode, found in presets.list().items()
    }
    if format == "modes":
        return by_mode
    return [{**preset, "mode": mode} for mode, found in by_mode.items() for preset in found]


def _described(preset: Preset) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": preset.id,
        "name": preset.name,
        "description": preset.description,
        "order": int(preset.order) if preset.order.is_integer() else preset.order,
    }
    if preset.prompt is None:
        described["system_content"] = [
            {"type": "text", "text": item.text}
            if item.sound is None
            else {
                "type": "audio",
                "name": item.name,
                "duration": duration_s(item.sound),
                "path": item.sound.name,
                "data": None,
            }
            for item in preset.content
        ]
        return described
    described["system_prompt"] = preset.prompt
    if preset.voice is not None:
        described["ref_audio"] = {
            "name": preset.voice_name,
            "duration": duration_s(preset.voice),
            "path": preset.voice.name,
            "data": None,
        }
    return described


def _sounds(presets: Presets, mode: str, preset_id: str) -> PresetSounds | None:
    preset = presets.find(mode, preset_id)
    if preset is None or not (preset.sounds or preset.voice):
        return None
    return PresetSounds(
        system_content_audio=[_sound(path) for path in preset.sounds],
        ref_audio=UNSET if preset.voice is None else _sound(preset.voice),
    )


def _sound(path: Path) -> PresetSound:
    pcm = read_voice(path, limit_s=SOUND_LIMIT_S)
    data = codec.to_base64(to_float32_bytes(pcm))
    return PresetSound(data=data, name=path.stem, duration=round(pcm.duration_s, 3))
