"""Sound in another format than the published one, in whole sessions."""

import base64
import threading
from typing import Any

import pytest
from tests.support.patience import until
from tests.support.sessions import Talk, worker_harness
from tests.support.talking import b64
from tests.support.timeline import chunks, silence, sound, speak

from parley.dialects.duplex import DuplexDialect
from parley.media import coding
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm, join
from parley.protocol import binary, codec
from parley.protocol.resume import numbers_of, with_fields

OPUS = {"input": "opus", "output": "opus", "binary": True}
PCM16 = {"input": "pcm16", "output": "pcm16"}
ASKED = sound(silence(0.5), speak(2.0), silence(1.5))


class Client:
    """Sends chunks of 100 ms in a format and counts what they take."""

    def __init__(self, talk: Talk, format_: dict[str, Any], field: str, type_: str) -> None:
        self._talk = talk
        self._field = field
        self._type = type_
        self._is_binary = format_.get("binary", False)
        self._encoder = coding.encoder(format_["input"], INPUT_RATE_HZ)
        self.sent_bytes = 0

    def feed(self, pcm: Pcm) -> None:
        for chunk in chunks(pcm, 0.1):
            data = self._encoder.encode(chunk)
            message = {"type": self._type, self._field: "" if self._is_binary else b64(data)}
            frame: str | bytes = codec._encoder.encode(message).decode()
            if self._is_binary:
                frame = binary.pack(str(frame), data)
            self.sent_bytes += len(frame)
            self._talk.say(frame)


def said(talk: Talk, format_: dict[str, Any], field: str) -> Pcm:
    decoder = coding.decoder(format_["output"], OUTPUT_RATE_HZ)
    texts = [message.get(field) for message in talk.socket.sent]
    return join([decoder.decode(base64.b64decode(t)) for t in texts if t], OUTPUT_RATE_HZ)


@pytest.mark.parametrize("format_", [OPUS, PCM16], ids=["opus", "pcm16"])
async def test_half_duplex_in_another_format(format_):
    async with worker_harness() as harness:
        talk = await harness.ready("half_duplex", config={"audio_format": format_})
        client = Client(talk, format_, "audio_base64", "audio_chunk")
        client.feed(ASKED)
        done = await talk.until("turn_done")

        told = (await talk.until("prepared"))["audio_format"]
        heard = said(talk, format_, "audio_data")
        assert told == {"binary": False, **format_}
        assert heard.duration_s == pytest.approx(done["audio_duration_ms"] / 1000, abs=0.1)
        assert heard.samples.std() > 0.01


@pytest.mark.parametrize(
    ("dialect", "field", "said_in", "type_", "answer"),
    [
        ("duplex", "audio_base64", "audio_data", "audio_chunk", "result"),
        *[("realtime", "audio", "audio", "input_audio_buffer.append", "response.listen")],
    ],
)
async def test_a_call_in_opus_takes_at_most_eight_kilobytes_a_second(
    dialect, field, said_in, type_, answer
):
    async with worker_harness(mailbox_units=20) as harness:
        talk = await harness.ready(dialect, audio_format=OPUS)
        client = Client(talk, OPUS, field, type_)
        talk.socket.sent_bytes = 0
        call = sound(silence(0.5), speak(6.0), silence(8.5))
        client.feed(call)
        await talk.until(answer, 6 if dialect == "realtime" else 14)
        if dialect == "realtime":
            await talk.until("response.output_audio.delta", 5)

        heard = said(talk, OPUS, said_in)
        assert heard.duration_s > 3
        assert (client.sent_bytes + talk.socket.sent_bytes) / call.duration_s < 8192
        assert client.sent_bytes / call.duration_s < 4300


@pytest.mark.parametrize(("length_s", "on_loop"), [(0.02, True), (1.0, False)])
async def test_a_second_of_opus_is_not_decoded_on_the_event_loop(monkeypatch, length_s, on_loop):
    decoded_by: list[int] = []

    def decode(self, frame, phase):
        decoded_by.append(threading.get_ident())
        return None

    async with worker_harness() as harness:
        talk = await harness.ready("duplex", audio_format=OPUS)
        monkeypatch.setattr(DuplexDialect, "decode", decode)
        packets = coding.encoder("opus", INPUT_RATE_HZ).encode(sound(speak(length_s)))
        talk.say(binary.pack('{"type":"audio_chunk"}', packets))
        await until(lambda: decoded_by)

    assert (decoded_by == [threading.get_ident()]) is on_loop


@pytest.mark.parametrize(
    "frame",
    [b"\0\0\0\x09{}", b"\0\0\0\x02[]", b"", binary.pack('{"type":"audio_chunk"}', b"\0\x04abcd")],
    ids=["cut", "no object", "empty", "no Opus"],
)
async def test_a_broken_binary_message_is_answered_and_the_session_continues(frame):
    async with worker_harness() as harness:
        talk = await harness.ready("duplex", "omni_1", audio_format=OPUS)
        talk.say(frame)
        error = await talk.until("error")
        Client(talk, OPUS, "audio_base64", "audio_chunk").feed(sound(speak(1.3)))
        await talk.until("result")

        assert error["code"] in ("invalid_payload", "unknown_event", "invalid_json")


def test_a_binary_message_is_numbered_as_a_text_is():
    frame = with_fields(binary.pack('{"type":"result"}', b"\xff\0sound"), '"seq":3,"received":7')

    assert isinstance(frame, bytes)
    assert binary.split(frame) == (b'{"type":"result","seq":3,"received":7}', b"\xff\0sound")
    assert numbers_of(frame).seq == 3
