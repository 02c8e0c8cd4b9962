"""`parley bench field`: recordings are spoken to a server, and its answers are written."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.noises import spoken
from typer.testing import CliRunner

from parley.cli.bench import app
from parley.cli.bench.field import ServerSound
from parley.cli.bench.server import server
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.media.wav import decode_wav, encode_wav


@pytest.mark.timeout(120)
async def test_every_input_gets_an_output_of_its_length_and_times(tmp_path: Path):
    sound = np.zeros(6 * INPUT_RATE_HZ, np.float32)
    said = spoken("Tell me a story about a fox who could not sleep, please.")[: 2 * INPUT_RATE_HZ]
    sound[INPUT_RATE_HZ : INPUT_RATE_HZ + len(said)] = said
    for name, samples in (("1", sound), ("deep/2", np.zeros_like(sound[:INPUT_RATE_HZ]))):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "input.wav").write_bytes(encode_wav(Pcm(samples, INPUT_RATE_HZ)))

    async with server(1) as url:
        done = await asyncio.to_thread(
            CliRunner().invoke,
            app,
            ["field", url, "--folder", str(tmp_path)],
            catch_exceptions=False,
        )

    assert done.exit_code == 0, done.output
    times = json.loads((tmp_path / "1" / "times.json").read_text())
    (answer,) = times["answers"]
    end_s = 1 + len(said) / INPUT_RATE_HZ
    assert end_s < answer["start_s"] < answer["end_s"]
    output = decode_wav((tmp_path / "1" / "output.wav").read_bytes())
    assert len(output) == 6 * output.rate_hz
    loud_s = np.flatnonzero(np.abs(output.samples) > 1e-3) / output.rate_hz
    assert answer["start_s"] - 0.01 <= loud_s[0] < answer["start_s"] + 0.5
    assert json.loads((tmp_path / "deep/2/times.json").read_text()) == {"answers": []}
    assert decode_wav((tmp_path / "deep/2/output.wav").read_bytes()).duration_s == 1.0


def test_what_was_cut_is_not_heard():
    tone = Pcm(np.full(OUTPUT_RATE_HZ, 0.5, np.float32), OUTPUT_RATE_HZ)
    heard = ServerSound([(1.0, 2.5, True)], [(1.0, tone), (2.0, tone)])

    loud = np.flatnonzero(heard.sound(4.0).samples)
    assert (loud[0], loud[-1] + 1) == (OUTPUT_RATE_HZ, 2.5 * OUTPUT_RATE_HZ)
    assert len(heard.sound(2.2)) == round(2.2 * OUTPUT_RATE_HZ)


def test_a_folder_without_recordings_is_refused(tmp_path: Path):
    done = CliRunner().invoke(app, ["field", "http://127.0.0.1:9", "--folder", str(tmp_path)])

    assert done.exit_code != 0
    assert "no input.wav" in str(done.exception)
