"""Slicing, resizing, patch layout and placeholders of pictures."""

from tests.golden import media, tiny
from tests.golden.case import Case, Checker, strided

from parley.models.minicpmo45.config import SliceRules
from parley.models.minicpmo45.prompt.layout import PromptPicture, expand
from parley.models.minicpmo45.vision_encoder.pictures import cut, fitting_size, tiled_size


def run(case: Case, check: Checker) -> None:
    given = case.json["input"]
    pixels = media.image(given["image"])
    limit = given["max_slice_nums"]
    height, width = pixels.shape[:2]
    rules = SliceRules()
    pieces = cut(pixels, limit, rules)
    check.equal("grid", pieces.grid, case.json["grid_cols_rows"])
    check.equal("slices", pieces.count, case.json["num_slices"])
    check.equal("image_sizes", [[width, height]], case.json["image_sizes"])
    if "source_resize_wh" in case.json:
        source = fitting_size(width, height, rules, enlarge=pieces.grid is None)
        check.equal("source size", source, case.json["source_resize_wh"])
    if case.json.get("refine_resize_wh") is not None and pieces.grid is not None:
        refined = tiled_size(width, height, pieces.grid, rules)
        check.equal("refined size", refined, case.json["refine_resize_wh"])
    check.equal("tgt_sizes", pieces.sizes, case.arrays["tgt_sizes"])
    for index, patches in enumerate(pieces.patches):
        check.summary(f"slice {index}", patches, case.json["slices"][index])
        if f"slice{index}_strided" in case.arrays:
            check.close(f"slice {index}", strided(patches), case.arrays[f"slice{index}_strided"])
        if f"slice{index}_full" in case.arrays:
            check.close(f"slice {index} full", patches, case.arrays[f"slice{index}_full"])
    _placeholders(case, check, width, height, limit)


def _placeholders(case: Case, check: Checker, width: int, height: int, limit: int) -> None:
    words = tiny.words(case.folder)
    for key, number in (("placeholder_with_id_3", 3), ("placeholder_without_id", None)):
        if key not in case.json:
            continue
        picture = PromptPicture(number or 0, width, height, limit, with_id=number is not None)
        prompt = expand([picture], words, SliceRules())
        check.equal(key, words.decode(prompt.ids), case.json[key])
