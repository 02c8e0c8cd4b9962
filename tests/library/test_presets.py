"""Presets: shipped, added, changed while the server runs, and kept inside their folder."""

import os
from pathlib import Path

import pytest
import soundfile
from tests.support.recordings import tone

from parley.library.presets import APP_IDS, Presets


def write(root: Path, text: str, mode: str = "omni", name: str = "mine.yaml") -> Path:
    path = root / "presets" / mode / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_every_mode_has_a_chinese_and_an_english_call(tmp_path):
    presets = Presets(tmp_path)
    found = presets.list()

    assert tuple(found) == APP_IDS
    for mode in APP_IDS:
        assert [one.id for one in found[mode]][:2] == ["call_zh", "call_en"]
    assert [one.id for one in found["turnbased"]][2:] == ["video_zh", "video_en"]
    assert all(one.prompt or one.content for mode in APP_IDS for one in found[mode])
    assert presets.problems == []


def test_an_operators_preset_joins_in_its_order_and_replaces_by_id(tmp_path):
    write(tmp_path, "id: guide\norder: 15\nname: Guide\nsystem_prompt: Be a guide.")
    write(tmp_path, "id: call_zh\norder: 10\nname: 我的\nsystem_prompt: 你好", name="zh.yaml")

    found = Presets(tmp_path).list()["omni"]

    assert [one.id for one in found] == ["call_zh", "guide", "call_en"]
    assert found[0].name == "我的"


def name_of(presets: Presets, preset_id: str) -> str:
    found = presets.find("omni", preset_id)
    assert found is not None
    return found.name


def test_changes_are_seen_without_a_restart(tmp_path):
    presets = Presets(tmp_path)
    path = write(tmp_path, "id: a\nname: Old\nsystem_prompt: x")
    assert name_of(presets, "a") == "Old"

    path.write_text("id: a\nname: Newer\nsystem_prompt: x")
    os.utime(path, ns=(1, 1))
    assert name_of(presets, "a") == "Newer"

    path.unlink()
    assert presets.find("omni", "a") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "- a",
        "id: a",
        "system_prompt: [1]",
        "system_prompt: a\nsystem_content: []",
        "system_content: [7]",
        "system_content: [{type: image}]",
        "system_prompt: !!python/object/apply:os.system ['true']",
        "x" * 300_000,
    ],
)
def test_a_file_that_cannot_be_used_is_reported_and_the_others_stay(tmp_path, text):
    write(tmp_path, text, name="bad.yaml")
    presets = Presets(tmp_path)

    assert [one.id for one in presets.list()["omni"]] == ["call_zh", "call_en"]
    assert presets.problems[0].startswith("presets/omni/bad.yaml: ")


@pytest.mark.parametrize("path", ["../secret.wav", "/etc/passwd", "link.wav", "folder/secret.wav"])
def test_sounds_must_lie_inside(tmp_path, path):
    soundfile.write(tmp_path / "secret.wav", tone(1.0, 16_000).samples, 16_000)
    write(tmp_path, f"id: a\nsystem_prompt: x\nref_audio_path: {path}")
    (tmp_path / "presets" / "link.wav").symlink_to(tmp_path / "secret.wav")
    (tmp_path / "presets" / "folder").symlink_to(tmp_path)
    presets = Presets(tmp_path)

    assert presets.find("omni", "a") is None
    assert len(presets.problems) == 1


def test_a_linked_preset_file_is_not_read(tmp_path):
    (tmp_path / "secret.yaml").write_text("id: a\nsystem_prompt: password")
    folder = tmp_path / "presets" / "omni"
    folder.mkdir(parents=True)
    (folder / "a.yaml").symlink_to(tmp_path / "secret.yaml")

    assert Presets(tmp_path).find("omni", "a") is None
