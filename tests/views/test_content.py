import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.sounds import speak

from parley.engine.segments import Audio, Mark, Marker, Text
from parley.media.pcm import Pcm
from parley.views.content import AudioPart, ImagePart, Layout, Message
from parley.views.prompts import system_message

VECTORS = Path(__file__).parents[1] / "golden" / "data" / "prompts"
PIXELS = np.zeros((4, 6, 3), np.uint8)


def kinds(segments):
    return [
        segment.text if isinstance(segment, Text) else type(segment).__name__
        for segment in segments
    ]


def test_parts_are_lines_of_a_turn():
    message = Message.of("user", "Look:", ImagePart(PIXELS), "Well?")

    segments = Layout("clip", joins_lines=True).message(message)

    assert segments[0] == Marker(Mark.TURN_START, "user")
    assert kinds(segments[1:-1]) == ["Look:", "\n", "Image", "\n", "Well?"]
    assert segments[-1] == Marker(Mark.TURN_END, "user")


def test_the_omni_layout_puts_nothing_between():
    message = Message.of("user", "a", AudioPart(speak(0.1)), "b")

    segments = Layout("turn", joins_lines=False).message(message, is_closed=False)

    assert kinds(segments) == ["Marker", "a", "Audio", "b"]
    assert isinstance(segments[2], Audio)
    assert segments[2].hearing == "turn"


def test_sound_of_any_rate_reaches_the_model_at_its_rate():
    sound = AudioPart(Pcm(np.zeros(8000, np.float32), 8000))

    (segment,) = Layout("clip", joins_lines=False).content([sound])

    assert isinstance(segment, Audio)
    assert (segment.pcm.rate_hz, len(segment.pcm)) == (16_000, 16_000)


def texts(message):
    return [getattr(part, "text", "<audio>") for part in message.parts]


def test_voice_prompts_without_a_reference():
    assert texts(system_message("audio_roleplay", None, None)) == [
        "Use the <reserved_53> voice.",
        "Try to role-play the character based on the audio prompt above.",
    ]
    assert texts(system_message("omni", None, "en")) == [""]
    assert system_message("voice_cloning", None, "en") is None
    assert system_message("default", speak(1), "en") is None


@pytest.mark.parametrize(
    "case",
    sorted(path for path in VECTORS.glob("sys_*.json") if "default" not in path.name),
    ids=lambda path: path.stem,
)
def test_voice_prompts_are_those_of_the_public_implementation(case: Path):
    mode: Any
    mode, language, reference = case.stem.removeprefix("sys_").rsplit("_", 2)
    recorded = json.loads(case.read_text(encoding="utf-8"))["input"]["msgs"][0]["content"]
    expected = [part if isinstance(part, str) else "<audio>" for part in recorded]
    voice = speak(1) if reference == "ref" else None

    assert texts(system_message(mode, voice, language)) == expected
