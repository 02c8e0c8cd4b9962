"""Small mistakes with the client are answered by a sentence that names the argument."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
from tests.client.test_client_transport import Script, listener

import parley
from parley.client import sync
from parley.client.access import Access, BadAddress, Unreachable, unreachable
from parley.errors import InvalidPayload, InvalidRequest, SetupError
from parley.media.pcm import Pcm

Made = Callable[[], object]
PATH: Any = "me.wav"
CHAT: Any = parley.ChatClient("https://a")


@pytest.mark.parametrize(
    "url",
    ["https://localhost:8oo6", "https://localhost:99999", "https://", "https://:1", "ftp://a"],
)
def test_what_is_not_an_address_is_called_so(url: str) -> None:
    with pytest.raises(BadAddress, match="not the address of a server") as caught:
        Access(url).socket_url("/ws/chat")

    assert "https://localhost:8006" in caught.value.hint


def test_a_key_with_a_line_break_at_its_end_is_the_key() -> None:
    assert Access("https://a", token=" key_1\n").headers() == {"Authorization": "Bearer key_1"}


@pytest.mark.parametrize("token", ["schlüssel", "a\nb"])
def test_a_key_that_no_header_can_have_is_refused_and_not_printed(token: str) -> None:
    with pytest.raises(InvalidRequest, match="token must be printable ASCII") as caught:
        Access("https://a", token=token)

    assert token not in str(caught.value)


@pytest.mark.parametrize("url", ["nowhere", "nowhere:8006", "https://nowhere/ws/chat"])
def test_an_unknown_host_is_named_also_without_a_scheme(url: str) -> None:
    error = unreachable(url, socket.gaierror(-2, "Name or service not known"))

    assert "unknown host 'nowhere' (Name or service not known)." in str(error)


async def test_a_refused_connection_is_called_so() -> None:
    for url in ("http://127.0.0.1:1", "http://localhost:1"):
        client = parley.ChatClient(url, attempts=1)
        with pytest.raises(Unreachable, match=r"/ws/chat\S*: Connection refused\.") as caught:
            await client.ask("Hello!")
        # Under the traceback.
        assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: parley.DuplexClient("https://a", voice=PATH), "voice must be .* got str"),
        (lambda: CHAT.request("?", images=[PATH]), "images must be .* got str"),
        (lambda: CHAT.request("?", clips=b"mp4"), "clips must be .* got int"),
        (lambda: CHAT.request("?", sounds=[b"RIFF"]), "Sound must be a Pcm.* got bytes"),
    ],
)
def test_a_path_in_place_of_a_file_is_named(make: Made, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        make()


@pytest.mark.parametrize(
    "client", [parley.ChatClient, parley.HalfDuplexClient, parley.DuplexClient, sync.SyncServer]
)
def test_an_option_that_does_not_exist_is_named(client: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{client.__name__} has no option 'insecur'\.$"):
        client("https://a", insecur=True)


def test_a_voice_that_is_not_a_wav_file_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidPayload, match="voice must be a Pcm or the bytes of a WAV file"):
        parley.RealtimeClient("https://a", voice=b"ID3\x04")


async def test_sound_and_pictures_of_a_call_are_named_too() -> None:
    script = Script({"type": "queue_done"}, answers=listener())

    async with parley.HalfDuplexClient("https://a.test", transport=script) as talk:
        await talk.ready()
        with pytest.raises(TypeError, match=r"Sound must be a Pcm.* got str"):
            await talk.say(PATH)
        with pytest.raises(TypeError, match=r"pictures must be the bytes of a file, got str"):
            talk.write("What is this?", PATH)
    async with parley.Server("https://a.test", transport=script) as server:
        with pytest.raises(TypeError, match=r"sound must be the bytes of a file, got str"):
            await server.add_voice("Anna", PATH)


async def test_a_conversation_that_was_not_opened_says_how_to_open_it() -> None:
    talk: Any = parley.HalfDuplexClient("https://a.test", transport=Script(answers=lambda _: []))

    for use in (lambda: talk.say(Pcm.silence(1, 16_000)), talk.ready, talk.__anext__):
        with pytest.raises(SetupError, match="has not been opened") as caught:
            await use()
        assert "async with" in caught.value.hint
