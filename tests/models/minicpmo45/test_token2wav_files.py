"""Vocoder files in the published layout, and those that are not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.tiny_voice import tiny_token2wav, tiny_voice

from parley.errors import SetupError
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.models.minicpmo45.token2wav.vocoder_causal import CausalVocoder
from parley.models.minicpmo45.token2wav.vocoder_files import load_token2wav, missing_files
from parley.models.minicpmo45.token2wav.windows import VocoderWindow


def save(folder: Path, speech: Token2Wav, *, prefix: str = "") -> None:
    """Write files as they are published: folded weights taken apart again."""
    torch.save(dict(speech.flow.state_dict()), folder / "flow.pt")
    plain = ("m_source", "f0_predictor.classifier", "source_downs")
    stored = {}
    for name, value in speech.vocoder.state_dict().items():
        value = value.float()
        if value.dim() == 3 and not name.startswith(plain):
            place = f"{prefix}{name.removesuffix('.weight')}.parametrizations.weight"
            stored[f"{place}.original0"] = value.norm(dim=(1, 2), keepdim=True)
            stored[f"{place}.original1"] = 3 * value
        else:
            stored[prefix + name] = value
    torch.save(stored, folder / "hift.pt")


@pytest.mark.parametrize("prefix", ["", "generator."])
@pytest.mark.parametrize("is_causal", [False, True])
def test_files_in_the_published_layout_load(tmp_path: Path, prefix: str, is_causal: bool) -> None:
    speech = tiny_token2wav(is_causal=is_causal, has_all_convolutions=True)
    save(tmp_path, speech, prefix=prefix)

    loaded = load_token2wav(tmp_path, slots=1, steps=3, prompt_frames=80)

    assert isinstance(loaded.vocoder, CausalVocoder) is is_causal
    for each in (speech, loaded):
        each.begin(0, each.prime(tiny_voice()))
    window = VocoderWindow(tuple(range(1, 14)), False)
    np.testing.assert_allclose(
        loaded.decode([0], [window])[0], speech.decode([0], [window])[0], atol=1e-3
    )


def test_absent_file_is_named_and_text_still_works(tmp_path: Path) -> None:
    assert missing_files(tmp_path) == ["flow.pt", "hift.pt"]

    with pytest.raises(SetupError, match=r"flow\.pt is missing") as caught:
        load_token2wav(tmp_path, slots=1)

    assert "Text works without it" in caught.value.hint


def test_file_that_is_not_weights_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "flow.pt").write_bytes(b"not a weights file")

    with pytest.raises(SetupError, match=r"flow\.pt cannot be read"):
        load_token2wav(tmp_path, slots=1)


def test_every_tensor_is_accounted_for(tmp_path: Path) -> None:
    speech = tiny_token2wav()
    save(tmp_path, speech)
    tensors = torch.load(tmp_path / "flow.pt", weights_only=True)
    del tensors["encoder_proj.bias"]
    tensors["stranger"] = torch.zeros(1)
    tensors["encoder.after_norm.weight"] = torch.zeros(3)
    torch.save(tensors, tmp_path / "flow.pt")

    with pytest.raises(SetupError) as caught:
        load_token2wav(tmp_path, slots=1)

    sentence = str(caught.value)
    assert "1 missing: encoder_proj.bias" in sentence
    assert "1 unexpected: stranger" in sentence
    assert "encoder.after_norm.weight (needs [16], has [3])" in sentence
