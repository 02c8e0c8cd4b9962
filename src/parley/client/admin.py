"""Administrative requests: status, queue, recordings, voices, presets, keys."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Literal, Self, Unpack
from urllib.parse import quote

import httpx

from parley.client.access import (
    Access,
    AccessOptions,
    Unreachable,
    fields_of,
    refusal_of,
    unreachable,
)
from parley.client.sound import file_out
from parley.errors import TimedOut
from parley.media.pcm import Pcm
from parley.media.wav import encode_wav
from parley.replacing import replacing

Fields = dict[str, Any]
"""The server's response; `/docs` of a running server describes its fields."""


class Server:
    """Requests of an operator. Use as `async with Server(url) as server`."""

    def __init__(self, url: str = "", **access: Unpack[AccessOptions]) -> None:
        self._access = Access.of(url, access, client="Server")
        self._http = self._access.http()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; safe to repeat."""
        await self._http.aclose()

    async def health(self, *, timeout_s: float | None = None) -> Fields:
        """The health page; raises if there is no response."""
        return await self._ask("GET", "/health", timeout_s=timeout_s)

    async def status(self, *, timeout_s: float | None = None) -> Fields:
        """Workers and queue in numbers."""
        return await self._ask("GET", "/status", timeout_s=timeout_s)

    async def queue(self, *, timeout_s: float | None = None) -> Fields:
        """Waiting and running sessions."""
        return await self._ask("GET", "/api/queue", timeout_s=timeout_s)

    async def cancel(self, ticket_id: str, *, timeout_s: float | None = None) -> bool:
        """Remove a waiting ticket from the queue; returns False if it was not waiting."""
        answer = await self._ask("DELETE", f"/api/queue/{_part(ticket_id)}", timeout_s=timeout_s)
        return bool(answer.get("success"))

    async def stop_half_duplex(
        self,
        session_id: str,
        scope: Literal["session", "turn"] = "session",
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Stop a half-duplex session, or its current turn; returns False if there is none."""
        body = {"session_id": session_id, "scope": scope}
        answer = await self._ask(
            "POST", "/api/half_duplex/stop", body, accept=(404,), timeout_s=timeout_s
        )
        return bool(answer.get("success"))

    # -- recordings --

    async def recordings(
        self, *, limit: int = 100, offset: int = 0, timeout_s: float | None = None
    ) -> list[Fields]:
        """One page of all recordings, newest first. For admins."""
        path = f"/api/sessions?limit={limit}&offset={offset}"
        return list((await self._ask("GET", path, timeout_s=timeout_s))["recordings"])

    async def recording(self, recording_id: str, *, timeout_s: float | None = None) -> Fields:
        """Metadata of a recording."""
        return await self._ask("GET", _recording(recording_id), timeout_s=timeout_s)

    async def timeline(self, recording_id: str, *, timeout_s: float | None = None) -> Fields | None:
        """Times of all speech; None while the session is running."""
        path = _recording(recording_id, "/recording")
        timeline = await self._ask("GET", path, timeout_s=timeout_s)
        return None if timeline.get("status") == "recording" else timeline

    async def download(self, recording_id: str, to: Path | str) -> Path:
        """Download a recording as a ZIP file to `to`; returns its path."""
        path, target = _recording(recording_id, "/download"), Path(to)
        try:
            with replacing(target) as partial:
                async with self._http.stream("GET", _relative(path)) as reply:
                    if not reply.is_success:
                        await reply.aread()
                        self._fields(reply)
                    with partial.open("wb") as file:
                        async for piece in reply.aiter_bytes():
                            file.write(piece)
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._unreachable(path, error) from None
        return target

    async def comment(
        self, recording_id: str, text: str, *, timeout_s: float | None = None
    ) -> None:
        """Set the comment of a recording; "" removes it."""
        path = _recording(recording_id, "/comment")
        await self._ask("POST", path, {"comment": text}, timeout_s=timeout_s)

    async def share(
        self,
        recording_id: str,
        *,
        expires_in_s: float | None = 86_400.0,
        timeout_s: float | None = None,
    ) -> str:
        """Create a link for viewing a recording, which does not contain its id; None: it never
        expires."""
        path = _recording(recording_id, "/share")
        made = await self._ask("POST", path, {"expires_in_s": expires_in_s}, timeout_s=timeout_s)
        return self._access.http_url(str(made["path"]))

    async def pin(
        self, recording_id: str, pinned: bool = True, *, timeout_s: float | None = None
    ) -> None:
        """Pin or unpin a recording: pinned ones are kept regardless of their age. For admins."""
        path = _recording(recording_id, "/pin")
        await self._ask("PUT", path, {"pinned": pinned}, timeout_s=timeout_s)

    async def delete_recording(self, recording_id: str, *, timeout_s: float | None = None) -> None:
        """Delete a recording, with those that continue it."""
        await self._ask("DELETE", _recording(recording_id), timeout_s=timeout_s)

    # -- voices and presets --

    async def voices(self, *, timeout_s: float | None = None) -> list[Fields]:
        """Registered voices."""
        answer = await self._ask("GET", "/api/assets/ref_audio", timeout_s=timeout_s)
        return list(answer["ref_audios"])

    async def add_voice(
        self, name: str, sound: Pcm | bytes, *, timeout_s: float | None = None
    ) -> str:
        """Register a voice: audio, or the bytes of an audio file. Returns its id, which sessions
        use as `ref_audio_path`."""
        data = encode_wav(sound) if isinstance(sound, Pcm) else sound
        body = {"name": name, "audio_base64": file_out("sound", data)}
        made = await self._ask("POST", "/api/assets/ref_audio", body, timeout_s=timeout_s)
        return str(made["id"])

    async def remove_voice(self, voice_id: str, *, timeout_s: float | None = None) -> None:
        """Delete a registered voice."""
        path = f"/api/assets/ref_audio/{_part(voice_id)}"
        await self._ask("DELETE", path, timeout_s=timeout_s)

    async def presets(self, *, timeout_s: float | None = None) -> dict[str, list[Fields]]:
        """Presets by mode."""
        return await self._ask("GET", "/api/presets", timeout_s=timeout_s)

    # -- keys and workers, for admins --

    async def keys(self, *, timeout_s: float | None = None) -> list[Fields]:
        """Valid keys, without the keys themselves."""
        return list((await self._ask("GET", "/api/admin/keys", timeout_s=timeout_s))["keys"])

    async def add_key(
        self,
        name: str,
        *,
        max_sessions: int = 8,
        per_minute: int = 120,
        timeout_s: float | None = None,
    ) -> Fields:
        """Create a key; `key` in the response is shown only this once."""
        body = {"name": name, "max_sessions": max_sessions, "per_minute": per_minute}
        return await self._ask("POST", "/api/admin/keys", body, timeout_s=timeout_s)

    async def revoke_key(self, key_id: str, *, timeout_s: float | None = None) -> None:
        """Revoke a key immediately."""
        await self._ask("DELETE", f"/api/admin/keys/{_part(key_id)}", timeout_s=timeout_s)

    async def drain(
        self, worker_id: str, draining: bool = True, *, timeout_s: float | None = None
    ) -> None:
        """Stop or resume giving new sessions to a worker; its running sessions continue, those that
        can resume at other workers."""
        path = f"/api/admin/workers/{_part(worker_id)}"
        await self._ask("PUT", path, {"draining": draining}, timeout_s=timeout_s)

    async def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        accept: tuple[int, ...] = (),
        timeout_s: float | None = None,
    ) -> Fields:
        limit = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            reply = await self._http.request(method, _relative(path), json=body, timeout=limit)
        except httpx.TimeoutException as error:
            if timeout_s is None:
                raise self._unreachable(path, error) from None
            raise TimedOut(f"{method} {path}", timeout_s) from None
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise self._unreachable(path, error) from None
        return self._fields(reply, accept)

    def _unreachable(self, path: str, error: Exception) -> Unreachable:
        return unreachable(self._access.http_url(path), error)

    def _fields(self, reply: httpx.Response, accept: tuple[int, ...] = ()) -> Fields:
        fields = fields_of(reply)
        if fields is not None and (reply.is_success or reply.status_code in accept):
            return fields
        raise refusal_of(self._access.url, reply)


def _part(text: str) -> str:
    return quote(text, safe="")


def _recording(recording_id: str, rest: str = "") -> str:
    return f"/api/sessions/{_part(recording_id)}{rest}"


def _relative(path: str) -> str:
    """The path, below the one at which a proxy may serve the server."""
    return path.lstrip("/")
