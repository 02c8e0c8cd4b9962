import numpy as np
import pytest
from tests.support.faults import Gated
from tests.support.present import present
from tests.support.sounds import speak

from parley.engine import Engine
from parley.engine.work import Ending, Stage
from parley.errors import ContextFull, InvalidRequest
from parley.models.parrot import Parrot
from parley.protocol.values import Generation
from parley.views.chat import ChatView
from parley.views.content import AudioPart, ImagePart, Message


@pytest.fixture
def view(slot):
    return ChatView(slot)


async def test_a_request_is_answered_as_it_comes(view):
    prefilled = await view.prefill("s", [Message.of("user", "Hello", AudioPart(speak(1.5)))])

    chunks = [chunk async for chunk in view.streaming_generate("s")]

    assert (
        prefilled.context_tokens
        == present(view.decoded).context_tokens - 3 - present(view.decoded).text_tokens
    )
    text = "".join(chunk.text_delta or "" for chunk in chunks)
    assert (
        text
        == present(view.decoded).text
        == "You spoke for 1.5 seconds at -13 dB. You wrote: Hello"
    )
    assert sum(len(chunk.audio) for chunk in chunks if chunk.audio) == 36_000
    assert [chunk.chunk_index for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0].audio is None
    assert len(chunks) > 5


async def test_one_piece_says_the_same_as_many(view):
    message = Message.of("user", "Hello", AudioPart(speak(1.5)), ImagePart(picture(480, 640)))
    await view.prefill("a", [message])
    chunks = [chunk async for chunk in view.streaming_generate("a")]

    await view.prefill("b", [message])
    answer = await view.generate("b")

    assert answer.text == "".join(chunk.text_delta or "" for chunk in chunks)
    streamed = np.concatenate([chunk.audio.samples for chunk in chunks if chunk.audio])
    np.testing.assert_array_equal(present(answer.audio).samples, streamed)


async def test_the_limit_is_kept(view):
    await view.prefill("s", [Message.of("user", "one two three four")])

    answer = await view.generate("s", Generation(max_new_tokens=3))

    assert answer.text == "You wrote: one "
    assert answer.decoded.ending is Ending.LIMIT


async def test_a_stopped_answer_ends_early():
    model = Gated(Parrot(1))
    async with Engine(model) as engine, await engine.take_slot() as slot:
        view = ChatView(slot)
        await view.prefill("s", [Message.of("user", AudioPart(speak(6)))])

        model.shut(Stage.VOCODE)
        chunks = []
        async for chunk in view.streaming_generate("s"):
            chunks.append(chunk)
            view.stop_generation()
            model.open()

        assert present(view.decoded).ending is Ending.CANCELLED
        assert sum(len(chunk.audio) for chunk in chunks if chunk.audio) < 6 * 24_000


async def test_a_reader_who_leaves_stops_the_model(view):
    await view.prefill("s", [Message.of("user", AudioPart(speak(100)))])

    stream = view.streaming_generate("s")
    await anext(stream)
    await stream.aclose()

    await view.prefill("t", [Message.of("user", "again")])
    assert (await view.generate("t")).text == "You wrote: again"


async def test_a_system_message_is_put_in_front_for_a_voice(view):
    plain = await view.prefill("a", [Message.of("user", "hi")])

    voiced = await view.prefill(
        "b", [Message.of("user", "hi")], tts_mode="audio_assistant", voice=speak(2)
    )
    own = await view.prefill(
        "c",
        [Message.of("system", "Be."), Message.of("user", "hi")],
        tts_mode="audio_assistant",
        voice=speak(2),
    )

    assert voiced.context_tokens >= plain.context_tokens + 20 + 5
    assert own.context_tokens == plain.context_tokens + 6


@pytest.mark.parametrize("messages", [[], [Message.of("assistant", "hi")]])
async def test_a_request_needs_a_beginning(slot, messages):
    with pytest.raises(InvalidRequest):
        await ChatView(slot).prefill("s", messages)


async def test_too_much_is_refused(view):
    with pytest.raises(ContextFull, match="maximum context length is 8192 tokens"):
        await view.prefill("s", [Message.of("user", "word " * 9000)])
    with pytest.raises(InvalidRequest, match="Nothing has been prefilled"):
        await view.generate("s")


def picture(height, width):
    return np.zeros((height, width, 3), np.uint8)
