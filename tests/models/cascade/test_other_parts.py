"""Parts that are not ours: any causal language model and Whisper of transformers, and voices and
recognisers of libraries that may be installed."""

import importlib.util
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Cast, turn
from tests.models.cascade.parts import (
    LoudnessRecogniser,
    SizeEyes,
    ToneSpeaker,
    byte_tokenizer,
    result_of,
)

from parley.engine.segments import Text
from parley.engine.work import Generate, StartSession
from parley.errors import SetupError
from parley.models.cascade import installed, loader
from parley.models.cascade.loader import find_recogniser, find_speaker, find_writer
from parley.models.cascade.model import Cascade
from parley.settings import ModelSettings
from parley.vad.energy import EnergyDetector

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def causal_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model of random weights, as transformers saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("causal")
    words = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), eos_token="<|im_end|>", chat_template=TEMPLATE
    )
    words.save_pretrained(folder)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        eos_token_id=words.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def cascade(folder: Path) -> Cascade:
    writer = find_writer(ModelSettings(name="cascade", llm=str(folder)), None, 2)
    return Cascade(writer, LoudnessRecogniser(), ToneSpeaker(), SizeEyes(), EnergyDetector, rows=2)


def works(*said: str):
    yield StartSession("chat", seed=1, speak=False)
    for text in said:
        yield turn("user", Text(text), is_closed=False)
        yield Generate(max_new_tokens=12)


def test_a_folder_of_transformers_writes_the_answers(causal_folder: Path):
    model = cascade(causal_folder)

    answers = [
        result_of(one)
        for one in Cast(model).play(0, list(works("Hello.", "And you?")))
        if isinstance(one.work, Generate)
    ]

    assert model.spec.context_limit_tokens == 512
    assert [0 < answer.text_tokens <= 12 for answer in answers] == [True, True]
    assert answers[1].context_tokens > answers[0].context_tokens


def test_it_says_the_same_again_and_next_to_another_conversation(causal_folder: Path):
    alone = [one.text for one in Cast(cascade(causal_folder)).play(0, list(works("Hello.", "So?")))]

    model = cascade(causal_folder)
    Cast(model).play(1, list(works("Something else.")))
    again = [one.text for one in Cast(model).play(0, list(works("Hello.", "So?")))]

    assert again == alone


def test_a_language_model_without_a_chat_template_is_refused(causal_folder: Path, tmp_path: Path):
    for file in causal_folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())

    with pytest.raises(SetupError, match="no chat template"):
        find_writer(ModelSettings(name="cascade", llm=str(tmp_path)), None, 1)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(SetupError, match="cannot be loaded"):
        find_writer(ModelSettings(name="cascade", llm=str(tmp_path)), None, 1)
    with pytest.raises(SetupError, match="cannot be loaded"):
        find_recogniser(ModelSettings(name="cascade", asr=str(tmp_path)), None)


def test_a_whisper_of_transformers_hears(tmp_path: Path):
    from transformers import (
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
        WhisperTokenizer,
    )

    letters = {token: index for index, token in enumerate("abcdefghijklmnop")}
    specials = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    vocabulary = letters | {token: len(letters) + n for n, token in enumerate(specials)}
    words = WhisperTokenizer(vocab=vocabulary, merges=[], additional_special_tokens=specials)
    WhisperProcessor(WhisperFeatureExtractor(), words).save_pretrained(tmp_path)
    torch.manual_seed(4)
    config = WhisperConfig(
        vocab_size=len(words), d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        decoder_start_token_id=17, bos_token_id=16, eos_token_id=16, pad_token_id=16,
        suppress_tokens=[], begin_suppress_tokens=[], max_target_positions=160,
    )  # fmt: skip
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path)
    recogniser = find_recogniser(ModelSettings(name="cascade", asr=str(tmp_path)), None)

    hearing = recogniser.begin(np.zeros(16_000, np.float32))

    assert hearing.step()
    assert hearing.heard is not None
    assert set(hearing.heard.text) <= set("abcdefghijklmnop ")


class TwoSegments:
    """What faster-whisper returns."""

    def __init__(self, name: str, **options: str) -> None:
        assert options == {"device": "cpu", "compute_type": "int8"}

    def transcribe(self, samples, **options):
        assert samples.dtype == np.float32
        said = [(" What is", -0.2, 0.1), (" your name?", -0.4, 0.02)]
        return (
            SimpleNamespace(text=text, avg_logprob=score, no_speech_prob=silence)
            for text, score, silence in said
        ), None


def test_faster_whisper_hears_where_the_folder_is_in_its_form(tmp_path: Path, monkeypatch):
    (tmp_path / installed.CTRANSLATE2_FILE).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "faster_whisper", SimpleNamespace(WhisperModel=TwoSegments))

    recogniser = find_recogniser(ModelSettings(name="cascade", asr=str(tmp_path)), None)
    hearing = recogniser.begin(np.zeros(16_000, np.float32))
    hearing.step()

    assert hearing.heard is not None
    assert hearing.heard.text == "What is your name?"
    assert hearing.heard.confidence == pytest.approx(-0.3)
    assert hearing.heard.silence == pytest.approx(0.02)


def test_a_library_that_is_not_installed_is_named_with_its_command(tmp_path: Path, monkeypatch):
    (tmp_path / "voice.onnx").write_bytes(b"")
    (tmp_path / "voice.onnx.json").write_bytes(b"{}")
    monkeypatch.setitem(sys.modules, "piper", None)

    with pytest.raises(SetupError) as refused:
        find_speaker(ModelSettings(name="cascade", tts=str(tmp_path / "voice.onnx")), None)

    assert refused.value.hint == "Install it with: pip install piper-tts"


def test_the_doctor_says_what_is_missing_and_what_fits(tmp_path: Path, monkeypatch):
    (tmp_path / "voice.onnx").write_bytes(b"")
    settings = ModelSettings(
        name="cascade", llm="localhost:11434", asr=str(tmp_path), tts=str(tmp_path / "voice.onnx")
    )
    (tmp_path / installed.CTRANSLATE2_FILE).write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(loader, "available_bytes", lambda: 500_000_000)

    plan = loader.describe(settings)

    assert [one.partition(" needs the package ")[2].split(",")[0] for one in plan.problems[:2]] == [
        "faster-whisper",
        "kokoro-onnx",
    ]
    assert plan.problems[2:] == (
        "There is no 'localhost:11434'; an address starts with http:// or https://.",
        "A worker takes about 1.0 GB of memory; 0.5 GB are free.",
    )
    nameless = loader.describe(ModelSettings(name="cascade", tts="nova"))
    assert "There is no 'nova'; an address starts with http:// or https://." in nameless.problems


def test_the_doctor_finds_what_a_start_would_refuse(monkeypatch):
    settings = ModelSettings(name="cascade", llm="http://localhost:1/v1")
    monkeypatch.setattr(loader, "check", lambda endpoint: ["a", "b"])

    with pytest.raises(SetupError) as refused:
        loader.find_writer(settings, None, 1)

    assert loader.describe(settings).problems[-1] == f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    ("group", "where", "left"),
    [("/", "", 700), ("/a.slice/b.service", "a.slice", 700), ("/a.slice", "b.slice", 9000 * 1024)],
    ids=["container", "service", "of others"],
)
def test_the_limit_of_a_container_or_service_counts(group, where, left, tmp_path: Path):
    folder = tmp_path / "sys/fs/cgroup" / where
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 10000 kB\nMemAvailable: 9000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"4:memory:/x\n0::{group}\n")
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("1000\n")
    (folder / "memory.current").write_text("500\n")
    (folder / "memory.stat").write_text("anon 300\ninactive_file 200\n")

    assert loader.available_bytes(tmp_path) == left
    assert loader.available_bytes(tmp_path / "sys") is None


def test_a_file_that_is_not_a_voice_is_refused(tmp_path: Path):
    (tmp_path / "voice.onnx").write_bytes(b"")

    with pytest.raises(SetupError, match="not a voice of a known format"):
        find_speaker(ModelSettings(name="cascade", tts=str(tmp_path / "voice.onnx")), None)


class Tone:
    """Kokoro's interface: a second of sound at its rate, whatever is said."""

    def __init__(self, path: str, voices: str) -> None:
        assert path.endswith("kokoro.onnx")
        assert voices.endswith("voices-v1.0.bin")

    def get_voices(self) -> list[str]:
        return ["af_heart", "am_adam"]

    def create(self, text: str, *, voice: str, lang: str):
        assert lang == "en-us"
        return np.full(22_050, 0.1 if voice == "am_adam" else 0.2, np.float32), 22_050


@pytest.mark.parametrize(("voice", "level"), [("am_adam", 0.1), ("alloy", 0.2)])
def test_kokoro_speaks_with_the_voice_that_is_set(tmp_path: Path, monkeypatch, voice, level):
    (tmp_path / "kokoro.onnx").write_bytes(b"")
    (tmp_path / "voices-v1.0.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "kokoro_onnx", SimpleNamespace(Kokoro=Tone))

    settings = ModelSettings(name="cascade", tts=str(tmp_path / "kokoro.onnx"), tts_voice=voice)
    speaker = find_speaker(settings, None)

    assert speaker is not None
    said = speaker.say("Hello.", speaker.find(None))
    assert len(said) == 24_000
    assert float(np.median(said)) == pytest.approx(level, abs=0.01)
    assert len(speaker.say("...", 0)) == 0


PIPER = "PARLEY_TEST_PIPER"
"""Names a Piper voice (an ONNX file), for anyone who has piper-tts installed."""


@pytest.mark.skipif(
    PIPER not in os.environ or importlib.util.find_spec("piper") is None,
    reason=f"needs piper-tts, and a voice in {PIPER}",
)
def test_a_voice_of_piper_speaks():
    speaker = find_speaker(ModelSettings(name="cascade", tts=os.environ[PIPER]), None)

    assert speaker is not None
    said = speaker.say("The capital of Italy is Rome.", 0)
    assert 24_000 < len(said) < 4 * 24_000
    assert 0.01 < float(np.abs(said).max()) <= 1.0
