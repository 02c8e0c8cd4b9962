import pytest
from tests.support.sounds import speak

from parley.errors import InvalidRequest, SetupError
from parley.models.parrot import Parrot
from parley.views.content import Message
from parley.views.half_duplex import TurnRequest
from parley.views.processor import UnifiedProcessor


async def test_one_model_serves_three_ways():
    async with UnifiedProcessor(Parrot()) as processor:
        chat = processor.set_chat_mode()
        await chat.prefill("c", [Message.of("user", "hi")])
        assert (await chat.generate("c")).text == "You wrote: hi"

        half = processor.set_half_duplex_mode()
        await half.prefill(TurnRequest("h", (Message.of("user", "ho"),)))
        assert [chunk async for chunk in half.generate("h")][-1].is_final

        duplex = processor.set_duplex_mode()
        assert await duplex.prepare() == processor.kv_cache_length > 0
        assert processor.mode == "duplex"


async def test_the_same_mode_again_touches_nothing():
    async with UnifiedProcessor(Parrot()) as processor:
        duplex = processor.set_duplex_mode()
        await duplex.prepare()

        assert processor.set_duplex_mode() is duplex
        assert (await duplex.prefill(speak(1))).success


async def test_a_switch_ends_the_conversation_of_the_other_view():
    async with UnifiedProcessor(Parrot()) as processor:
        half = processor.set_half_duplex_mode()
        await half.prefill(TurnRequest("h", (Message.of("system", "hi"),)))

        processor.set_chat_mode()
        processor.set_half_duplex_mode()

        assert not await half.can_rollback()
        with pytest.raises(InvalidRequest):
            await anext(half.generate("h"))
        for _ in range(2):
            duplex = processor.set_duplex_mode()
            await duplex.prepare()
            assert (await duplex.unit(speak(1))).current_time == 1
            processor.set_chat_mode()


async def test_a_processor_has_to_be_started():
    with pytest.raises(SetupError, match="has not been started"):
        UnifiedProcessor(Parrot()).set_chat_mode()
