"""The licences of what is bundled are shown and shipped."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTICE = ROOT / "packages" / "parley-pocket-data" / "NOTICE"


def test_the_page_shows_the_notices_of_the_bundled_weights() -> None:
    shown = (ROOT / "src" / "parley" / "web" / "notices.txt").read_text("utf-8")

    assert NOTICE.read_text("utf-8") in shown


@pytest.mark.parametrize(
    ("part", "work"),
    [
        ("asr-*.safetensors", "Whisper tiny.en, OpenAI. MIT"),
        ("llm-*.safetensors", "SmolLM2-135M-Instruct, HuggingFaceTB. Apache"),
        ("voice-*.safetensors", "Kokoro-82M, hexgrad. Apache"),
        ("eyes-*.safetensors", "EfficientNet-Lite0, Google;"),
        ("eyes.txt", "WordNet 3.0, Princeton University"),
        ("lexicon.xz", "misaki, hexgrad. Apache"),
        ("letters.npz", "g2p_en, Kyubyong Park and Jongseok Kim. Apache"),
    ],
)
def test_every_bundled_part_has_its_notice(part: str, work: str) -> None:
    assert list((NOTICE.parent / "parley_pocket_data").glob(part))
    assert work in NOTICE.read_text("utf-8")


def test_there_is_no_bundled_file_without_a_known_origin() -> None:
    known = {
        "asr",
        "llm",
        "voice",
        "eyes",
        "lexicon",
        "letters",
        "tokenizer",
        "cascade",
        "__init__",
    }
    files = [path for path in (NOTICE.parent / "parley_pocket_data").iterdir() if path.is_file()]

    assert {path.name.split(".")[0].split("-")[0] for path in files} <= known
    assert all(path.stat().st_size < 50_000_000 for path in files)
