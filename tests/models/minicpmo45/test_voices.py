"""Voices: made from a reference, kept by content, refused in plain words."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.tiny_onnx import write_speaker, write_tokenizer
from tests.support.tiny_voice import tiny_voice

from parley.errors import InvalidPayload, SetupError, VoiceUnavailable
from parley.media.pcm import Pcm
from parley.media.wav import save as save_wav
from parley.models.minicpmo45.token2wav.features import (
    flow_mel,
    resampled,
    speaker_bank,
    tokenizer_mel,
)
from parley.models.minicpmo45.token2wav.voice_maker import SPEAKER_FILE, TOKENIZER_FILE, VoiceMaker
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.token2wav.voices import VoiceStore, read_pack, write_pack


def reference(seconds: float = 3.0, rate_hz: int = 16_000, hz: float = 180.0) -> Pcm:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    sound = 0.3 * np.sin(2 * np.pi * hz * t) * (0.6 + 0.4 * np.sin(2 * np.pi * 2 * t))
    return Pcm(sound.astype(np.float32), rate_hz)


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    folder = tmp_path / "assets"
    folder.mkdir()
    write_tokenizer(folder / TOKENIZER_FILE)
    write_speaker(folder / SPEAKER_FILE)
    return folder


class FakeMaker(VoiceMaker):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.made = 0

    def make(self, reference: Pcm) -> VoicePack:
        self.made += 1
        return tiny_voice(len(reference))


class FakeSession:
    """A network with one input of a rank, and a fixed answer."""

    def __init__(self, rank: int, answer: np.ndarray) -> None:
        self.rank, self.answer = rank, answer

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="x", shape=["d"] * self.rank, type="tensor(float)")]

    def run(self, outputs: None, inputs: dict[str, Any]) -> list[Any]:
        return [self.answer]


def same(a: VoicePack, b: VoicePack) -> bool:
    return a.key == b.key


@pytest.mark.parametrize("rate_hz", [16_000, 48_000])
def test_voice_comes_from_both_networks_and_the_mel(assets: Path, rate_hz: int) -> None:
    sound = reference(3.0, rate_hz, 7_000)

    pack = VoiceMaker(assets).make(sound)

    low = resampled(sound.samples, rate_hz, 16_000)
    mel = tokenizer_mel(low)
    wanted = np.abs(mel.mean(axis=0)[::4] * 100).astype(np.int64)
    assert np.abs(pack.tokens - wanted).max() <= 1
    assert len(pack.tokens) == 75
    most = speaker_bank(low).max(axis=0)
    np.testing.assert_allclose(pack.embedding, np.tile(most, 3)[:192], atol=1e-6)
    wanted_mel = flow_mel(resampled(sound.samples, rate_hz, 24_000))
    np.testing.assert_allclose(pack.mel, wanted_mel, atol=1e-6)


def test_mel_is_made_as_long_as_the_tokens(assets: Path) -> None:
    pack = VoiceMaker(assets).make(reference(6.016))

    assert (len(pack.tokens), pack.frames) == (151, 302)
    assert np.array_equal(pack.mel[300], pack.mel[299])


def test_long_reference_is_cropped_for_the_prompt(assets: Path) -> None:
    pack = VoiceMaker(assets).make(reference(25.0))

    assert (len(pack.tokens), pack.frames) == (250, 500)


@pytest.mark.parametrize(
    ("sound", "sentence"),
    [
        (reference(0.2), "too short: 0.2 s"),
        (Pcm.silence(32_000, 16_000), "is silent"),
        (Pcm(np.full(32_000, np.nan, np.float32), 16_000), "not finite"),
    ],
)
def test_sound_that_cannot_be_a_voice_is_refused(sound: Pcm, sentence: str) -> None:
    with pytest.raises(InvalidPayload, match=sentence):
        VoiceStore(FakeMaker()).voice(sound)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (Path.unlink, r"need campplus\.onnx .* text works without"),
        (lambda path: path.write_bytes(b"nothing"), r"campplus\.onnx cannot be loaded"),
        (lambda path: write_speaker(path, width=100), "100 numbers instead of 192"),
    ],
    ids=["absent", "broken", "of another width"],
)
def test_a_speaker_net_that_does_not_serve_is_named(
    assets: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(assets / SPEAKER_FILE)

    with pytest.raises(VoiceUnavailable, match=sentence):
        VoiceMaker(assets).make(reference())


def test_reference_without_speech_is_said_so(assets: Path) -> None:
    maker = VoiceMaker(assets, opens=lambda _: FakeSession(3, np.zeros((1, 0), np.int64)))

    with pytest.raises(VoiceUnavailable, match="no speech"):
        maker.make(reference())


def test_known_reference_is_not_described_twice(tmp_path: Path) -> None:
    maker = FakeMaker()
    shelf = VoiceStore(maker, folder=tmp_path)

    sound = reference(2.0)
    first, again, other = map(shelf.voice, (sound, reference(2.0), reference(2.5)))

    assert maker.made == 2
    assert same(first, again)
    assert not same(first, other)
    shelf.voice(Pcm(sound.samples, 24_000))
    assert maker.made == 3


def test_kept_voice_outlives_the_process_and_needs_no_networks(tmp_path: Path) -> None:
    first = VoiceStore(FakeMaker(), folder=tmp_path).voice(reference())

    later = VoiceStore(None, folder=tmp_path).voice(reference())

    assert same(first, later)


def test_damaged_file_is_made_again(tmp_path: Path) -> None:
    VoiceStore(FakeMaker(), folder=tmp_path).voice(reference())
    path = next(tmp_path.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:50])
    maker = FakeMaker()

    VoiceStore(maker, folder=tmp_path).voice(reference())

    assert maker.made == 1
    assert read_pack(path).frames == 60


def test_voices_not_used_for_longest_make_room(tmp_path: Path) -> None:
    shelf = VoiceStore(FakeMaker(), folder=tmp_path, kept_files=2)
    for number in range(3):
        shelf.voice(reference(1.0 + number))
        for age, path in enumerate(sorted(tmp_path.glob("*"), key=lambda p: p.stat().st_mtime)):
            os.utime(path, (1000 * number + age, 1000 * number + age))

    maker = FakeMaker()
    fresh = VoiceStore(maker, folder=tmp_path)
    fresh.voice(reference(3.0))
    fresh.voice(reference(2.0))
    assert maker.made == 0
    fresh.voice(reference(1.0))

    assert maker.made == 1


def test_folder_that_cannot_be_written_costs_the_keeping_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")

    pack = VoiceStore(FakeMaker(), folder=blocked).voice(reference())

    assert pack.frames == 60


def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_pack(tmp_path / "a.safetensors", tiny_voice())

    assert list(tmp_path.iterdir()) == []


def test_without_new_voices_the_unknown_is_refused() -> None:
    with pytest.raises(VoiceUnavailable, match="No new voices"):
        VoiceStore(None).voice(reference())


def test_default_voice_is_a_wave_file_or_a_stored_voice(tmp_path: Path, assets: Path) -> None:
    save_wav(tmp_path / "voice.wav", reference(2.0), bits=32)
    write_pack(tmp_path / "voice.safetensors", tiny_voice(5))

    spoken = VoiceStore(VoiceMaker(assets), default=tmp_path / "voice.wav")
    stored = VoiceStore(None, default=tmp_path / "voice.safetensors")

    assert spoken.has_default
    assert len(spoken.default().tokens) == 50
    assert same(stored.default(), tiny_voice(5))


def test_absent_default_voice_is_said_so(tmp_path: Path) -> None:
    shelf = VoiceStore(None, default=tmp_path / "gone.wav")

    assert not shelf.has_default
    with pytest.raises(VoiceUnavailable, match=r"gone\.wav cannot be used"):
        shelf.default()
    with pytest.raises(VoiceUnavailable, match="no default voice"):
        VoiceStore(None).default()


def test_file_that_is_not_a_voice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"no")

    with pytest.raises(SetupError, match=r"a\.safetensors is not a stored voice"):
        read_pack(path)


@pytest.mark.parametrize(
    ("tokens", "mel", "sentence"),
    [(0, 0, "at least one token"), (3, 5, "need a mel of 6 frames")],
)
def test_voice_that_does_not_add_up_is_refused(tokens: int, mel: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        VoicePack(
            np.zeros(tokens, np.int64), np.zeros(192, np.float32), np.zeros((mel, 80), np.float32)
        )
