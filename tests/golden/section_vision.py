"""The vision tower and the resampler."""

import re

import torch
from tests.golden import media, tiny
from tests.golden.case import Case, Checker
from tests.support.states import layer_states

from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.vision_encoder.pictures import Pieces, cut


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    specs = given["images"] if "images" in given else [given["image"]]
    pictures = [cut(media.image(spec), given["max_slice_nums"], SliceRules()) for spec in specs]
    sizes = [size for picture in pictures for size in picture.sizes]
    want_sizes = case.json.get("tgt_sizes", case.arrays.get("tgt_sizes"))
    check.equal("tgt_sizes", sizes, want_sizes)
    if "emb" in case.arrays:
        _layers(case, check, pictures)
    else:
        _outputs(case, check, pictures)


def _outputs(case: Case, check: Checker, pictures: list[Pieces]) -> None:
    picture_encoder = tiny.picture_encoder(case.folder)
    pieces = [
        one for picture in pictures for one in zip(picture.patches, picture.sizes, strict=True)
    ]
    features = [picture_encoder.features([patch], size) for patch, size in pieces]
    tokens = torch.cat(
        [
            picture_encoder.resampler(one, size)
            for one, (_, size) in zip(features, pieces, strict=True)
        ]
    )
    check.summary("resampler", tokens, case.json["resampler"])
    for key, want in case.arrays.items():
        if key == "tgt_sizes":
            continue
        if key == "resampler_full":
            check.close(key, tokens, want)
        elif key == "vpm_full":
            check.close(key, features[0][0], want)
        elif found := re.fullmatch(r"resampler_every(\d+)", key):
            check.close(key, tokens[:, :: int(found[1])], want)
        elif found := re.fullmatch(r"vpm_slice(\d+)_every(\d+)", key):
            check.close(key, features[int(found[1])][0, :: int(found[2])], want)
        else:
            check.note(f"unknown array {key}")


def _layers(case: Case, check: Checker, pictures: list[Pieces]) -> None:
    picture_encoder = tiny.picture_encoder(case.folder)
    (picture,) = pictures
    step = _step(case)
    pixels = picture.patches[0][None].to(tiny.PRECISION.device)
    with layer_states(picture_encoder.tower.encoder.layers) as states:
        features = picture_encoder.tower(pixels, picture.sizes[0])
    check.close("emb", states[0][0, ::step], case.arrays["emb"])
    for index, state in enumerate(states[1:]):
        if f"layer{index}" in case.arrays:
            check.close(f"layer{index}", state[0, ::step], case.arrays[f"layer{index}"])
    resampler = picture_encoder.resampler
    check.close("kv_proj", resampler.kv_proj(features)[0, ::step], case.arrays["kv_proj"])
    attended = resampler.attention(features, picture.sizes[0])[0]
    every = attended.shape[0] // case.arrays["resampler_attn"].shape[0]
    check.close("resampler_attn", attended[::every], case.arrays["resampler_attn"])
    out = resampler(features, picture.sizes[0])[0]
    check.close("out", out[::every], case.arrays["out"])


def _step(case: Case) -> int:
    found = re.search(r"rows 0,(\d+),", case.json.get("note", ""))
    if found is None:
        raise ValueError("the case does not say which rows it holds")
    return int(found[1])
