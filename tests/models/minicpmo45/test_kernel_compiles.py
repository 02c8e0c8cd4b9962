"""The attention kernel compiled to machine code for every card that is served, without a card.

Triton compiles for any target; what a program needs of a card's shared memory is part of what it
makes. A use that needs more than a card has could not be launched there.

A program takes one to six seconds to compile: all uses are compiled for 8.6, which multiplies
blocks as 8.0, 8.9 and 12.0 do and has the least shared memory; for each other card what the model
runs by default. `make test-long` adds, for 9.0 and 10.0, the other uses with blocks of 64 rows,
whose products are of other instructions there; one of them is a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.long import IS_LONG

from parley.models.minicpmo45.runtime import slot_attention

triton = pytest.importorskip("triton", reason="the package triton is not installed")

from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped] # noqa: E402
from triton.compiler import ASTSource  # type: ignore[import-untyped] # noqa: E402

from parley.models.minicpmo45.runtime import kernels  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
        "reads", "chunk", "k_slot", "k_head", "k_column", "v_slot", "v_head", "v_column",
        "tokens", "count", "mask_row",
        "ks_slot", "ks_head", "ks_column", "vs_slot", "vs_head", "vs_column",
        "table_row",
    ]  # fmt: skip
    constants: dict[str, Any] = {
        "HAS_MASK": use.has_mask,
        "HAS_SCALES": use.has_scales,
        "PAGE": use.page,
        "WIDTH": use.width,
        "QUERIES": use.queries,
        "BLOCK": slot_attention.block_of(use.width, BYTES[use.query]),
    }
    signature = {name: f"*{kind}" for name, kind in pointers.items()}
    signature |= {"scale": "fp32"} | dict.fromkeys(numbers, "i32")
    signature |= dict.fromkeys(constants, "constexpr")
    names = kernels.partial.arg_names
    assert sorted(names) == sorted(signature)
    even = {*pointers, *numbers[:8]}
    source = ASTSource(
        fn=kernels.partial,
        signature={name: signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in even
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


def uses_of(capability: int) -> list[Use]:
    """Those that are another program there than for the cards before."""
    if capability == 86:
        return list(USES)
    has_other_products = IS_LONG and capability in (90, 100)
    return [
        use for use in USES if use.name in DEFAULTS or (has_other_products and use.queries == 64)
    ]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize("capability", [one for one in SHARED_BYTES if one >= 89])
def test_rows_are_rounded_to_eight_bits_on_every_card_that_multiplies_them(capability: int) -> None:
    for width in (4096, 16_384):
        names = kernels.rounded.arg_names
        kinds = ("*bf16", "*fp8e4nv", "*fp32", "i32", "fp32", "fp32", "constexpr")
        source = ASTSource(
            fn=kernels.rounded,
            signature=dict(zip(names, kinds, strict=True)),
            constexprs={(names.index("WIDTH"),): width},
        )
        made = triton.compile(
            source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8}
        )

        assert made.asm["cubin"]
        assert made.metadata.shared <= SHARED_BYTES[capability]


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_use_compiles_and_fits_the_shared_memory_of_the_card(capability: int) -> None:
    for use in uses_of(capability):
        made = compiled(use, capability)

        assert made.asm["cubin"], use.name
        assert made.metadata.shared <= SHARED_BYTES[capability], use.name


def test_a_card_with_the_products_of_8_6_has_at_least_its_shared_memory() -> None:
    assert all(SHARED_BYTES[other] >= SHARED_BYTES[86] for other in (80, 89, 120))
