"""`python -m tools.bench turnbench`: conversations on two channels, and eot-bench's adapter; and
`turn`: the parts of a turn, inside and over the wire."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.noises import room, spoken
from tools.bench import app
from tools.bench.turn import AFTER, SILENCE_MS, inside, through
from tools.bench.turnbench import EotBenchAdapter
from typer.testing import CliRunner

from parley.cli.bench.server import server
from parley.media.pcm import INPUT_RATE_HZ, Pcm
from parley.media.wav import encode_wav
from parley.models.parrot import Parrot

ASKED = spoken("Could you pass me the salt and the bread please, thank you very much.", "en-us")


def channel(path: Path, *said_s: float) -> None:
    sound = room(14.0)
    for start_s in said_s:
        start = round(start_s * INPUT_RATE_HZ)
        sound[start : start + len(ASKED)] += ASKED
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_wav(Pcm(sound, INPUT_RATE_HZ)))


def test_turns_and_interruptions_of_both_speakers_are_written(tmp_path: Path):
    # The second speaker begins while the first still speaks.
    channel(tmp_path / "20" / "speaker_1_audio.wav", 1.0)
    channel(tmp_path / "20" / "speaker_2_audio.wav", 3.0)

    out = tmp_path / "predictions.json"
    done = CliRunner().invoke(
        app, ["turnbench", str(tmp_path), "--out", str(out)], catch_exceptions=False
    )

    assert done.exit_code == 0, done.output
    written = json.loads(out.read_text())
    (one,) = written["predictions"]
    assert (written["schema_version"], one["conversation_id"]) == (1, "20")
    ends_s = [start_s + len(ASKED) / INPUT_RATE_HZ for start_s in (1.0, 3.0)]
    for speaker, end_s in zip(("speaker_1", "speaker_2"), ends_s, strict=True):
        # Reported when it was decided, not when it happened.
        assert end_s < one[speaker]["eot"][-1] < end_s + 2.2
        assert one[speaker]["eot"] == sorted(set(one[speaker]["eot"]))
    assert one["speaker_1"]["interruption"] == []
    (interrupted_s,) = one["speaker_2"]["interruption"]
    assert 3.0 < interrupted_s < 4.2


def test_a_folder_without_conversations_is_refused(tmp_path: Path):
    done = CliRunner().invoke(app, ["turnbench", str(tmp_path)])

    assert done.exit_code == 1
    assert "contains no */speaker_1_audio.wav" in str(done.exception or done.output)


def test_the_adapter_of_eot_bench_scores_sound_of_any_rate():
    adapter = EotBenchAdapter()
    cut = ASKED[: len(ASKED) // 2]
    batch = [
        {"audio": {"array": np.asarray(each, np.float64), "sampling_rate": rate_hz}, "messages": []}
        for each, rate_hz in ((ASKED, 16_000), (cut, 16_000), (cut[::2], 8_000))
    ]

    scores = adapter.predict_batch(batch)

    assert adapter.supports_language("ja")
    assert len(scores) == 3
    assert all(0 <= score <= 1 for score in scores)


async def test_the_parts_inside_are_of_every_turn():
    words = [spoken("What is the capital of Italy?")]

    parts = await inside(Parrot(1), words, 2)

    assert {name: len(values) for name, values in parts.items()} == {
        "inside: queue": 2,
        "inside: prefill": 2,
        "inside: first text": 2,
        "inside: first window": 2,
        "inside: all": 2,
        "inside: all, taken in early": 2,
        **{f"inside: processor, {stage}": 2 for stage in ("encode", "prefill", "decode", "vocode")},
    }
    everything = parts["inside: all"]
    for name in ("queue", "prefill", "first text"):
        for part, whole in zip(parts[f"inside: {name}"], everything, strict=True):
            assert 0 < part <= whole


@pytest.mark.timeout(120)
async def test_the_parts_over_the_wire_add_up():
    words = [spoken("What is the capital of Italy?")]
    async with server(1) as url:
        parts = await through(url, words, 1, 0.02)

    (detector,), (after,) = parts["wire: detector"], parts[AFTER]
    assert detector > SILENCE_MS
    assert parts["wire: first sound, after the end of speech"] == [pytest.approx(detector + after)]
