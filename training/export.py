"""Phase `export`: one folder in the official layout, int8, ready to be shipped.

Next to the official files lies `pocket.json`: what the pocket model has beyond them (its vocoder,
its inner span), each with the reason.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from parley.models.pocket import quantized
from parley.models.pocket.vocoder import CodeVocoder
from training.codebook import Codebook
from training.nets import Pocket
from training.shape import config_json
from training.trainer import Run

LIMIT_BYTES = 20_000_000
FILES = ("vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json",
         "special_tokens_map.json")  # fmt: skip


def export(run: Run, pocket: Pocket, tokenizer: Any, out: Path, *, own_pitch_hz: float) -> int:
    """Write the checkpoint; returns its size in bytes.

    Raises:
        ValueError: it is larger than a package may be.
    """
    book = Codebook.load(run.path / "codebook.pt")
    vocoder = CodeVocoder(len(book.centers))
    run.load_part("vocoder", vocoder)
    vocoder.spectra.copy_(book.spectra())
    tensors = pocket.checkpoint()
    tensors |= {f"vocoder.{name}": t for name, t in vocoder.state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    quantized.write(out, tensors)
    for name in FILES:
        shutil.copy(run.path / "tokenizer" / name, out / name)
    ids = {name: tokenizer.token_to_id(name) for name in ("<focus>", "</perception>")}
    config = config_json(
        pocket.shape, audio_bos_id=ids["<focus>"], text_eos_id=ids["</perception>"]
    )
    _write(out / "config.json", config)
    _write(
        out / "generation_config.json",
        {
            "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
            "eos_token_id": [
                tokenizer.token_to_id("<|im_end|>"),
                tokenizer.token_to_id("<|endoftext|>"),
            ],
            "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
            "do_sample": False,
        },
    )
    _write(out / "preprocessor_config.json", preprocessor_json(pocket))
    _write(
        out / "pocket.json",
        {
            "shape": pocket.shape.as_dict(),
            "inner_span": ["<perception>", "</perception>"],
            "silence_code": book.silence,
            "own_pitch_hz": own_pitch_hz,
            "seed": run.seed,
        },
    )
    size = sum(file.stat().st_size for file in out.iterdir())
    if size > LIMIT_BYTES:
        raise ValueError(f"{out} has {size} bytes, more than the {LIMIT_BYTES} of a package")
    return size


def preprocessor_json(pocket: Pocket) -> dict[str, Any]:
    """The image and audio processors' settings under the official keys."""
    shape = pocket.shape
    return {
        "image_processor_type": "MiniCPMVImageProcessor",
        "feature_extractor_type": "MiniCPMAAudioProcessor",
        "processor_class": "MiniCPMOProcessor",
        "max_slice_nums": 1,
        "scale_resolution": shape.image_side,
        "patch_size": shape.patch,
        "use_image_id": True,
        "image_feature_size": shape.queries,
        "im_start": "<image>",
        "im_end": "</image>",
        "slice_start": "<slice>",
        "slice_end": "</slice>",
        "unk": "<unk>",
        "im_id_start": "<image_id>",
        "im_id_end": "</image_id>",
        "slice_mode": True,
        "audio_pool_step": shape.pool,
        "norm_mean": [0.5, 0.5, 0.5],
        "norm_std": [0.5, 0.5, 0.5],
        "version": 4.5,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
