"""The client for very slow servers, with a fast one."""

from tests.support.stack import running_stack
from tools.full_size_talk import talk


async def test_chat_a_unit_and_a_turn_are_answered_and_timed() -> None:
    async with running_stack(gateway={"http": True, "host": "127.0.0.1", "port": 0}) as stack:
        found = await talk(f"http://127.0.0.1:{stack.gateway.port}", 60.0)

    assert list(found) == ["ready", "chat", "duplex", "half_duplex"]
    assert not [name for name, what in found.items() if "error" in what], found
    assert found["chat"]["generated_tokens"] <= 8
    assert found["duplex"]["context_tokens"] > 0
    assert found["half_duplex"]["text"]
