"""A rerun says the time that it was, not the time that it is."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.models.cascade.parts import LoudnessRecogniser, SizeEyes, ToneSpeaker
from tests.support.recordings import recordings
from tests.support.sessions import worker_harness
from tokenizers import Tokenizer

from parley.clock import ManualClock
from parley.engine import Engine
from parley.models import pocket_data
from parley.models.cascade import store
from parley.models.cascade.llama import Llama
from parley.models.cascade.local import LocalWriter
from parley.models.cascade.model import Cascade
from parley.recording.layout import RecordingFolders
from parley.session.rerun import rerun
from parley.settings import ModelSettings
from parley.vad.energy import EnergyDetector

pytestmark = pytest.mark.timeout(240)

THEN = datetime.now() - timedelta(hours=5)
TOLD = f"It is {THEN.hour % 12 or 12}:{THEN.minute:02} {'AM' if THEN.hour < 12 else 'PM'}."
ASKED = {"messages": [{"role": "user", "content": "What time is it?"}], "streaming": False}


def cascade(llama: Llama, words: Tokenizer) -> Cascade:
    writer = LocalWriter(llama, words, rows=1)
    return Cascade(writer, LoudnessRecogniser(), ToneSpeaker(), SizeEyes(), EnergyDetector, rows=1)


async def test_the_time_is_that_of_the_recording(tmp_path: Path) -> None:
    data = pocket_data.folder(ModelSettings())
    assert data is not None
    parts = store.load_llama(data), store.load_tokenizer(data)
    clock = ManualClock()
    clock.time = THEN.timestamp  # type: ignore[method-assign]
    kept = recordings(tmp_path, model="pocket", clock=clock)
    async with worker_harness(recordings=kept, model=cascade(*parts)) as harness:
        talk = harness.begin("chat", "s")
        talk.say(ASKED)
        await talk.until("done")
        done = next(one for one in talk.socket.sent if one["type"] == "done")
        await talk.over()
    await asyncio.to_thread(kept.close)
    (folder,) = RecordingFolders(tmp_path)
    async with Engine(cascade(*parts)) as engine:
        slot = await engine.take_slot()
        found = await rerun(folder, slot)
        await slot.close()

    answers: list[Any] = [one for one in found.differences if one.what == "text"]
    said = done["text"]
    # A fixed answer counts as if the language model had written it.
    assert done["generated_tokens"] >= 5
    # The recorder was told another time than the model, so that the two can be told apart.
    assert said != TOLD
    assert [(one.recorded, one.now) for one in answers] == [(said, TOLD)]
