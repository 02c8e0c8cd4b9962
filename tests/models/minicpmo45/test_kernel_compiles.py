"""The attention kernel compiled to machine code for every card that is served, without a card.

Triton compiles for any target; what a program needs of a card's shared memory is part of what it
makes. A use that needs more than a card has could not be launched there.

A program takes one to six seconds to compile. 8.6 multiplies blocks as 8.0, 8.9 and 12.0 do and has
the least shared memory; 9.0 and 10.0 multiply blocks of 64 rows by other instructions. `make test`
compiles for 8.6 some uses in which every type, width, block and way of storing occurs, and for 9.0
what the model runs by default; `make test-long` every use, and for every card.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.long import IS_LONG

from parley.models.minicpmo45 import quantize
from parley.models.minicpmo45.runtime import products, slot_attention

triton = pytest.importorskip("triton", reason="the package triton is not installed")

from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped] # noqa: E402
from triton.compiler import ASTSource  # type: ignore[import-untyped] # noqa: E402

from parley.models.minicpmo45.runtime import kernels  # noqa: E402

pytestmark = pytest.mark.timeout(900)

SHARED_BYTES = {
    80: 166_912,
    86: 101_376,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}
"""Compute capability → most shared memory of one program. Source: CUDA C++ programming guide,
technical specifications per compute capability, less 1 KiB that the driver takes."""


@dataclass(frozen=True)
class Use:
    """Types are Triton's names. `queries`: rows of a block, `G * T` rounded up."""

    name: str
    query: str
    stored: str
    width: int
    queries: int
    has_mask: bool = False
    page: int = 0

    @property
    def has_scales(self) -> bool:
        return self.stored == "i8"


USUAL = (
    "decode from pages in 8 bits",
    "prefill of several rows from pages",
    "sound, caches in 8 bits",
    "flow",
    "decode in float32",
)
DEFAULTS = ("decode from pages", "prefill of several rows from pages")

BYTES = {"bf16": 2, "fp32": 4}

USES = (
    Use("decode", "bf16", "bf16", 128, 16),
    Use("decode from pages", "bf16", "bf16", 128, 16, page=256),
    Use("decode, caches in 8 bits", "bf16", "i8", 128, 16),
    Use("decode from pages in 8 bits", "bf16", "i8", 128, 16, page=256),
    Use("prefill of several rows", "bf16", "bf16", 128, 64),
    Use("prefill of several rows from pages", "bf16", "bf16", 128, 64, page=256),
    Use("the same in 8 bits", "bf16", "i8", 128, 64, page=256),
    Use("the same, caches in 8 bits", "bf16", "i8", 128, 64),
    Use("speech", "bf16", "bf16", 64, 16),
    Use("speech, caches in 8 bits", "bf16", "i8", 64, 16),
    Use("sound", "bf16", "bf16", 64, 64),
    Use("sound, caches in 8 bits", "bf16", "i8", 64, 64),
    Use("flow", "fp32", "bf16", 64, 64, has_mask=True),
    Use("decode in float32", "fp32", "fp32", 128, 16),
    Use("decode from pages in float32", "fp32", "fp32", 128, 16, page=256),
    Use("prefill of several rows in float32", "fp32", "fp32", 128, 64),
)


def compiled(use: Use, capability: int) -> Any:
    """The kernel's machine code for a card, specialised as at run time: pointers and strides are
    multiples of 16."""
    pointers = {
        "q": use.query, "k": use.stored, "v": use.stored, "slots": "i64", "first": "i64",
        "last": "i64", "mask": "i1" if use.has_mask else "i64",
        "k_scales": "fp16" if use.has_scales else "fp32",
        "v_scales": "fp16" if use.has_scales else "fp32",
        "table": "i64", "part": "fp32", "top": "fp32", "mass": "fp32",
    }  # fmt: skip
    numbers = [
        "reads", "chunk", "q_row", "q_token", "q_head",
        "k_slot", "k_head", "k_column", "v_slot", "v_head", "v_column",
        "tokens", "count", "mask_row",
        "ks_slot", "ks_head", "ks_column", "vs_slot", "vs_head", "vs_column",
        "table_row",
    ]  # fmt: skip
    block, ahead = slot_attention.tile_of(
        use.queries,
        use.width,
        BYTES[use.query],
        is_small=use.has_scales,
        is_paged=use.page > 0,
    )
    constants: dict[str, Any] = {
        "HAS_MASK": use.has_mask,
        "HAS_SCALES": use.has_scales,
        "PAGE": use.page,
        "WIDTH": use.width,
        "QUERIES": use.queries,
        "BLOCK": block,
        "PRECISION": "tf32" if use.query == "fp32" else "ieee",
    }
    signature = {name: f"*{kind}" for name, kind in pointers.items()}
    signature |= {"scale": "fp32"} | dict.fromkeys(numbers, "i32")
    signature |= dict.fromkeys(constants, "constexpr")
    names = kernels.partial.arg_names
    assert sorted(names) == sorted(signature)
    even = {*pointers, *numbers[:11]}
    source = ASTSource(
        fn=kernels.partial,
        signature={name: signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in even
        },
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_stages": ahead})


def uses_of(capability: int) -> list[Use]:
    """Those that are another program there than for the cards before."""
    if capability == 86:
        return [use for use in USES if IS_LONG or use.name in USUAL]
    has_other_products = IS_LONG and capability in (90, 100)
    return [
        use for use in USES if use.name in DEFAULTS or (has_other_products and use.queries == 64)
    ]


def other(
    kernel: Any,
    kinds: Sequence[str],
    constants: dict[str, int],
    capability: int,
    ahead: int = 4,
    warps: int = 4,
) -> Any:
    """Another kernel, compiled; numbers and pointers are multiples of 16."""
    names = kernel.arg_names
    signature = dict(zip(names, [*kinds, *["constexpr"] * len(constants)], strict=True))
    options = {"num_warps": warps, "num_stages": ahead}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if signature[name] not in ("constexpr", "fp32") and name != "rows"
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize("capability", SHARED_BYTES if IS_LONG else [86, 89, 90])
def test_products_of_few_rows_compile_for_every_card(capability: int) -> None:
    four = ("*bf16", "*u8", "*i32", "*bf16", "*bf16", "i32", "i32", "i32")
    made = []
    for block, more in quantize.ROW_BLOCKS:
        for programs in (1, 32):
            outs, warps = quantize.tile_outs(12288, programs, is_split=more > 0)
            if programs == 1 or not more:
                sizes = {"GROUP": 128, "ROWS": block, "MORE": more, "OUTS": outs}
                made.append(other(kernels.from_tiles, four, sizes, capability, 2, warps))
    # Older cards have no instruction that reads e4m3.
    if capability >= 89:
        small = ("*fp8e4nv", "*fp32", "*bf16", "i32")
        made.append(other(kernels.unpacked_rows, small, {"BLOCK": 4096}, capability))
    packed = [("*i8", "*bf16"), *([("*fp8e4nv", "*fp32")] if capability >= 89 else [])]
    for kept, of_rows in (("*bf16", "*fp32"), *packed):
        is_small = kept != "*bf16"
        kinds = ("*bf16", *[kept] * 3, *[of_rows] * 3, "*bf16", *["i32"] * 5)
        for rows in (16, 32, 64) if is_small else (16,):
            for outs in (4096, 24576):
                tile, block, ahead = products.tile_of(outs, rows, is_small=is_small)
                constants = {"HAS_SCALES": is_small, "ROWS": rows, "OUTS": tile, "BLOCK": block}
                made.append(other(kernels.few_rows, kinds, constants, capability, ahead))

    for one in made:
        assert one.asm["cubin"]
        assert one.metadata.shared <= SHARED_BYTES[capability]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize("capability", SHARED_BYTES if IS_LONG else [86, 90])
def test_the_kernels_between_products_compile_for_every_card(capability: int) -> None:
    of = "*bf16"
    made = [
        other(kernels.add_norm, (*[of] * 5, "fp32", "i32"), {"BLOCK": 4096}, capability),
        other(kernels.gate, (*[of] * 3, *["i32"] * 3), {"BLOCK": 1024}, capability),
    ]
    heads = {"HEADS": 32, "KEY_HEADS": 8, "WIDTH": 128, "HAS_NORM": True}
    for is_small in (False, True):
        kept = ("*i8", "*i8", "*fp16", "*fp16") if is_small else (of,) * 4
        kinds = (*[of] * 7, "*i64", of, *kept, "fp32", *["i32"] * 4)
        constants = {**heads, "HAS_SCALES": is_small}
        made.append(other(kernels.place_heads, kinds, constants, capability))

    for one in made:
        assert one.asm["cubin"]
        assert one.metadata.shared <= SHARED_BYTES[capability]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize("capability", SHARED_BYTES if IS_LONG else [86, 90])
def test_every_use_compiles_and_fits_the_shared_memory_of_the_card(capability: int) -> None:
    for use in uses_of(capability):
        made = compiled(use, capability)

        assert made.asm["cubin"], use.name
        assert made.metadata.shared <= SHARED_BYTES[capability], use.name


def test_a_card_with_the_products_of_8_6_has_at_least_its_shared_memory() -> None:
    assert all(SHARED_BYTES[other] >= SHARED_BYTES[86] for other in (80, 89, 120))
