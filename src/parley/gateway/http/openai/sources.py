"""Converts media that the worker does not read: pictures by URL, audio files other than WAV.

URLs are fetched only if the operator allows it, and never from inside this network: a name is
resolved once, all of its addresses must be public, and the connection uses one of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx
import msgspec

from parley.errors import BadInput, InvalidPayload, InvalidRequest, TooLarge
from parley.gateway.http.openai import completions
from parley.media import decoder
from parley.media.encoder import encode_whole
from parley.media.pcm import Pcm
from parley.protocol import codec, values

PART: Final = "messages[{}].content[{}]"
FETCH_LIMIT_S: Final = 15.0
URLS_LIMIT: Final = 16
"""Maximum number of URLs in one request."""
FETCHED_BYTES: Final = 96 << 20
"""Limit of their total size: in base64, the size of a chat request."""
TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses of IPv4 behind a translator. Source: RFC 6052."""
UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""Global unicast addresses of IPv6. Source: RFC 4291, IANA."""
_lookups: Final = ThreadPoolExecutor(4, thread_name_prefix="names")
"""Separate threads, because a client may name hosts whose name servers are slow, and the event loop
has only two threads, in which it resolves the names of workers."""
RIFF: Final = "UklGR"
"""The start of a WAV file, in base64."""
CONTENT_TYPES: Final = ("image/", "video/", "application/octet-stream")


class AddressRefused(InvalidRequest):
    """A URL is not fetched; has the reason."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Fetches the media that requests refer to.

    Args:
        may_fetch: True if http(s) URLs may be fetched.
    """

    may_fetch: bool = False

    async def completed(self, asked: completions.Completion) -> completions.Completion:
        """The request with all media in it.

        Raises:
            InvalidRequest, TooLarge: a URL or an audio file cannot be used.
        """
        if sum(_address(part) is not None for part in _parts(asked)) > URLS_LIMIT:
            raise InvalidRequest(
                f"A request may contain at most {URLS_LIMIT} addresses.", field="messages"
            )
        messages, room_bytes = [], FETCHED_BYTES
        for at, message in enumerate(asked.messages):
            content = message.content
            if isinstance(content, tuple):
                parts: list[completions.Content] = []
                for index, part in enumerate(content):
                    if type(part) not in completions.MEDIA:
                        parts.append(part)
                        continue
                    with completions.located(partial(PART.format, at, index)):
                        parts.append(await self._completed(part, room_bytes))
                    if _address(part) is not None:
                        # Counted before base64.
                        room_bytes -= len(_url(parts[-1]) or "") * 3 // 4
                message = msgspec.structs.replace(message, content=tuple(parts))
            messages.append(message)
        return msgspec.structs.replace(asked, messages=tuple(messages))

    async def _completed(self, part: completions.Content, room_bytes: int) -> completions.Content:
        match part:
            # A worker would treat a "wav" file without such a header as samples.
            case completions.AudioContent(audio) if not audio.data.startswith(RIFF):
                return completions.AudioContent(await _as_wav(audio))
            case completions.ImageContent(image) if _address(part) is not None:
                most = min(room_bytes, values.IMAGE_LIMIT_BYTES)
                data = await self._fetch(image.url, "image_url", most)
                return completions.ImageContent(completions.MediaUrl(data))
            case completions.VideoContent(video) if _address(part) is not None:
                most = min(room_bytes, values.VIDEO_LIMIT_BYTES)
                data = await self._fetch(video.url, "video_url", most)
                return completions.VideoContent(completions.MediaUrl(data))
            case _:
                return part

    async def _fetch(self, url: str, field: str, limit_bytes: int) -> str:
        """Fetches a URL and returns its content as a `data:` URL."""
        if not (self.may_fetch or url.startswith(("http://", "https://"))):
            raise AddressRefused(
                f"{field} must be a data URL (data:image/jpeg;base64,…).", field=field
            )
        if not self.may_fetch:
            raise AddressRefused(
                f"This server does not fetch addresses: send {field} as a data URL "
                "(data:image/jpeg;base64,…), or set security.fetch_urls on the server.",
                field=field,
            )
        address = await public_address(url, field=field)
        try:
            async with asyncio.timeout(FETCH_LIMIT_S):
                data = await _get(url, address, field, limit_bytes)
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise AddressRefused(f"{field} could not be fetched.", field=field) from error
        text = await asyncio.to_thread(codec.to_base64, data)
        return f"data:application/octet-stream;base64,{text}"


async def public_address(url: str, *, field: str) -> str:
    """One public address of the host of an http(s) URL.

    Raises:
        AddressRefused: another scheme, an unknown host, or one with a private address.
    """
    try:
        # Read as it will be requested: another reader might see another host.
        there = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise AddressRefused(f"{field} is not a URL.", field=field) from None
    is_usable = there.raw_host and not there.userinfo and (there.port or 0) in range(1 << 16)
    if there.scheme not in ("http", "https") or not is_usable:
        raise AddressRefused(f"{field} must be a data, http or https URL.", field=field)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(FETCH_LIMIT_S):
            found = await loop.run_in_executor(
                _lookups, socket.getaddrinfo, there.raw_host, None, 0, socket.SOCK_STREAM
            )
    except (OSError, ValueError, TimeoutError) as error:
        raise AddressRefused(f"The host of {field} is not known.", field=field) from error
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or not all(map(is_public, addresses)):
        raise AddressRefused(f"{field} points to a private network.", field=field)
    return addresses[0]


def is_public(address: str) -> bool:
    """True if an address is public."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo and parsed.teredo[1])
        if not inner and parsed in TRANSLATED:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if inner:
            return is_public(str(inner))
        return parsed in UNICAST and parsed.is_global
    return parsed.is_global and not parsed.is_multicast


async def _get(url: str, address: str, field: str, limit_bytes: int) -> bytes:
    """One request to one address; redirects are not followed."""
    there = httpx.URL(url)
    data = bytearray()
    async with (
        httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=FETCH_LIMIT_S) as http,
        http.stream(
            "GET",
            there.copy_with(host=address),
            headers={
                "host": there.netloc.decode(),
                "user-agent": "parley",
                "accept-encoding": "identity",
            },
            extensions={"sni_hostname": there.raw_host.decode()},
        ) as answer,
    ):
        if answer.status_code != 200:
            raise AddressRefused(
                f"{field} answered {answer.status_code}; redirections are not followed.",
                field=field,
            )
        if not answer.headers.get("content-type", "").startswith(CONTENT_TYPES):
            raise AddressRefused(f"{field} does not point to a picture or clip.", field=field)
        if answer.headers.get("content-encoding", "identity") != "identity":
            # Decompressed, a small piece may be a thousand times as large before it is counted.
            raise AddressRefused(
                f"{field}: the server there compresses its answer, which is not supported.",
                field=field,
            )
        async for piece in answer.aiter_raw():
            data += piece
            if len(data) > limit_bytes:
                raise TooLarge(field, len(data), limit_bytes)
    return bytes(data)


async def _as_wav(audio: completions.InputAudio) -> completions.InputAudio:
    """Decode and encode in threads, because the data may have megabytes."""
    field = "input_audio.data"
    data = await asyncio.to_thread(
        lambda: codec.from_base64(audio.data, field=field, limit_bytes=values.AUDIO_LIMIT_BYTES)
    )
    pcm = await pcm_of(data, field=field)
    wav = await asyncio.to_thread(encode_whole, "wav", pcm)
    return completions.InputAudio(await asyncio.to_thread(codec.to_base64, wav))


async def pcm_of(data: bytes, *, field: str) -> Pcm:
    """Decode an audio file of any common format to 16 kHz mono.

    Raises:
        InvalidPayload: it is not audio, or has none; names `field`.
        TooLarge: it is too long.
    """
    limit_s = float(values.AUDIO_LIMIT_S)
    if not data:
        raise InvalidPayload(f"{field} is empty.", field=field)
    try:
        pcm = await decoder.aside(lambda: decoder.shared().sound(data, limit_s=limit_s))
    except BadInput as error:
        error.field = error.field or field
        raise
    if not len(pcm):
        raise InvalidPayload(f"{field} has a header but no samples.", field=field)
    return pcm


def _parts(asked: completions.Completion) -> list[completions.Content]:
    return [
        part
        for message in asked.messages
        if isinstance(message.content, tuple)
        for part in message.content
    ]


def _url(part: completions.Content) -> str | None:
    match part:
        case completions.ImageContent(there) | completions.VideoContent(there):
            return there.url
        case _:
            return None


def _address(part: completions.Content) -> str | None:
    url = _url(part)
    return None if url is None or url.startswith("data:") else url
