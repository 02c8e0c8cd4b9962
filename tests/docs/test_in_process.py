"""The program that docs/do/in-process.md prints says what the page says, and the views take what
the published texts hand them."""

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from tests.docs.printed import ROOT, samples
from tests.support.programs import python

from parley.errors import InvalidPayload, InvalidRequest
from parley.models.parrot import Parrot
from parley.protocol.values import TextPart
from parley.views.content import Message
from parley.views.half_duplex import TurnRequest
from parley.views.processor import UnifiedProcessor

PAGE = "docs/do/in-process.md"


@pytest.mark.starts_python
def test_the_printed_program_says_what_the_page_says(tmp_path: Path) -> None:
    (sample,) = samples(PAGE, "python")
    expected = re.findall(r"```text\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)[0]

    ran = python("-c", sample.program, cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == expected


async def test_chat_takes_messages_as_the_protocol_has_them() -> None:
    sound = base64.b64encode(np.full(8_000, 0.1, np.float32).tobytes()).decode()
    parts = [{"type": "text", "text": "Listen:"}, {"type": "audio", "data": sound}]
    async with UnifiedProcessor(Parrot()) as processor:
        chat = processor.set_chat_mode()
        await chat.prefill("s", [{"role": "user", "content": parts}])
        answer = await chat.generate("s", generate_audio=False)

        assert "0.5 seconds" in answer.text
        with pytest.raises(InvalidRequest, match="role"):
            await chat.prefill("s", [{"content": "Hello!"}])


async def test_a_voice_is_an_array_and_a_check_for_a_rollback_is_a_truth() -> None:
    async with UnifiedProcessor(Parrot()) as processor:
        view = processor.set_half_duplex_mode()
        view.init_ref_audio_from_data(np.zeros(16_000, np.float32))
        with pytest.raises(InvalidPayload, match=r"shape \(N,\)"):
            view.init_ref_audio_from_data(np.zeros((2, 16_000), np.float32))

        assert not view.can_rollback()
        await view.prefill(TurnRequest("s", (Message("system", (TextPart("Be brief."),)),)))
        assert view.can_rollback()
        assert await view.can_rollback()
        view.clear_rollback_point()
        assert not view.can_rollback()
        assert not await view.can_rollback()
