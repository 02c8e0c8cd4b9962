"""Trials of the fast parts against their plain forms, on random numbers and without a checkpoint.

Loading runs them before anything is read from disk (`ladder.py`); `parley doctor --try` runs only
them. They need a few hundred megabytes. A trial raises `FastPathFailed` if a part computes a
different result; exceptions from building a part are passed on.

Shapes: `B` rows, `T` new tokens of each, `H` query heads, `K` key heads, `D` head width, `S` slots,
`C` columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.models.minicpmo45.config import DecoderConfig
from parley.models.minicpmo45.device import set_precision
from parley.models.minicpmo45.llm.steps import UNIT_TOKENS
from parley.models.minicpmo45.load_choice import LoadChoice
from parley.models.minicpmo45.quantize import (
    Int4Linear,
    RowQuantizedLinear,
    fits_int4,
    grouped,
)
from parley.models.minicpmo45.runtime import fused as fused_kernels
from parley.models.minicpmo45.runtime import slot_attention
from parley.models.minicpmo45.runtime.caches import (
    SlotCache,
    from_eight_bits,
    rotary,
    rotated,
    to_eight_bits,
)
from parley.models.minicpmo45.runtime.fast_paths import FastPathFailed, hold
from parley.models.minicpmo45.runtime.graphs import CudaGraphCapture, GraphCapture, GraphRunner
from parley.models.minicpmo45.runtime.pages import PAGE_POSITIONS
from parley.models.minicpmo45.runtime.products import FEW_ROWS, Fp8Linear, of_all
from parley.models.minicpmo45.token2wav.windows import WINDOW_FRAMES
from parley.models.minicpmo45.tts.config import SpeechConfig

SHORT_TOLERANCE: Final = 1e-2
"""Maximum relative distance of a row in 16 bits: numbers and weights are rounded to 8 bits of
mantissa."""

LONG_TOLERANCE: Final = {"ieee": 1e-3, "tf32": 3e-3}
"""The same in float32, by precision of its products (`slot_attention.precision_of`)."""

INT4_TOLERANCE: Final = 5e-2
"""Maximum relative distance of a product in bfloat16 from the same in float32."""

PRECISION_TOLERANCE: Final = {"float32": 1e-5, "tf32": 2e-3, "bfloat16": 1e-2}
"""Maximum relative distance of a product of 256 terms, by `model.token2wav_precision`."""

SLOTS: Final = (7, 2, 5, 0, 8, 3, 6)
"""A shuffled subset of nine slots."""

ENDS: Final = (0, 62, 63, 64, 128, 191, -1)
"""The last column that each slot sees: the edges of blocks of 64, and the end (-1)."""

FIRSTS: Final = (0, 0, 0, 0, 63, 64, 128)
"""The first column that each slot sees: the window of the speech decoder moves."""

READS: Final = (200, 512)

LONG_READS: Final = 8192
"""Number of columns of a single conversation, divided among many programs."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of the attention kernel.

    Args:
        ends_together: all new tokens of a row see the same columns.
        is_masked: each row sees only some of its columns.
        is_paged: keys and values are in pages.
        stored: dtype of the stored keys and values, if it is not `dtype`.
    """

    name: str
    tokens: int
    heads: int
    key_heads: int
    width: int
    dtype: torch.dtype
    stored: torch.dtype | None = None
    ends_together: bool = False
    is_masked: bool = False
    has_small_caches: bool = True
    is_paged: bool = False

    @property
    def fits(self) -> bool:
        """True if the kernel supports this use."""
        return slot_attention.fits(self.tokens * (self.heads // self.key_heads), self.width)


def uses_of(chosen: LoadChoice) -> list[Use]:
    """Every use of the kernel in a model."""
    config, flow, dtype = chosen.config, chosen.flow, chosen.dtype
    language, audio = config.language, config.audio
    heads, width = language.num_attention_heads, language.head_dim
    sound = audio.encoder_attention_heads
    key_heads = language.num_key_value_heads
    uses = [
        Use("decode", 1, heads, key_heads, width, dtype, is_paged=True),
        Use("decode by row", 1, heads, key_heads, width, dtype),
        Use("unit", UNIT_TOKENS, heads, key_heads, width, dtype, is_paged=True),
        Use("sound", 50, sound, sound, audio.d_model // sound, dtype, ends_together=True),
    ]
    if config.has_tts:
        tts = SpeechConfig.from_json(config.tts)
        heads, key_heads = tts.num_attention_heads, tts.num_key_value_heads
        uses.append(Use("speech", 1, heads, key_heads, tts.head_dim, dtype))
        uses.append(
            Use(
                "flow",
                WINDOW_FRAMES,
                flow.estimator_heads,
                flow.estimator_heads,
                flow.estimator_head_width,
                chosen.flow_dtype,
                stored=chosen.history,
                ends_together=True,
                is_masked=True,
                has_small_caches=False,
            )
        )
    return [use for use in uses if use.fits]


def attention(chosen: LoadChoice, *, has_small_caches: bool) -> None:
    """Compare the kernel with a direct computation.

    Args:
        has_small_caches: with caches in 8 bits.
    """
    uses, device = uses_of(chosen), chosen.device
    for use in uses:
        if has_small_caches and not use.has_small_caches:
            continue
        for reads in READS:
            _compare(_made(use, reads, device, has_small_caches), use, f"{use.name}, {reads}")
    longest = uses[0]
    case = _made(longest, LONG_READS, device, has_small_caches, rows=1)
    _compare(case, longest, f"{longest.name}, {LONG_READS}")


class Case(NamedTuple):
    """Arguments of `slot_attention.attend`."""

    query: Tensor
    keys: Tensor
    values: Tensor
    slots: Tensor
    first: Tensor
    last: Tensor
    reads: int
    mask: Tensor | None = None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None
    table: Tensor | None = None


def _made(
    use: Use, reads: int, device: torch.device, has_small_caches: bool, rows: int = len(SLOTS)
) -> Case:
    random = torch.Generator(device=device).manual_seed(reads)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, device=device)

    slots = torch.tensor(SLOTS[-rows:], device=device)
    first = torch.tensor(FIRSTS[-rows:], device=device)
    ends = torch.tensor(ENDS[-rows:], device=device) % reads
    steps = torch.arange(use.tokens, device=device)
    last = ends[:, None].expand(-1, use.tokens)
    if not use.ends_together:
        last = torch.maximum(last - steps.flip(0), first[:, None])
    query = normal(rows, use.tokens, use.heads, use.width).to(use.dtype)
    shape = (max(SLOTS) + 1, use.key_heads, reads + 1, use.width)
    keys, values = normal(*shape), normal(*shape)
    scales: tuple[Tensor | None, Tensor | None] = (None, None)
    if has_small_caches:
        keys, of_keys = to_eight_bits(keys)
        values, of_values = to_eight_bits(values)
        scales = (of_keys, of_values)
    else:
        stored = use.stored or use.dtype
        keys, values = keys.to(stored), values.to(stored)
    columns = torch.arange(reads + 1, device=device)
    hidden = (columns > last.amax(1)[:, None]) | (columns < first[:, None])
    # Columns that no token may see contain NaN.
    for tensor in scales if has_small_caches else (keys, values):
        assert tensor is not None
        of_rows = tensor[slots].transpose(1, 2)
        of_rows[hidden] = torch.nan
        tensor[slots] = of_rows.transpose(1, 2)
    mask = None
    if use.is_masked:
        mask = torch.rand(rows, reads, generator=random, device=device) < 0.9
        mask[:, 0] = True
        mask.scatter_(1, first[:, None], True)
    return Case(query, keys, values, slots, first, last.contiguous(), reads, mask, *scales)


def _compare(case: Case, use: Use, what: str) -> None:
    given = _in_pages(case) if use.is_paged else case
    found = slot_attention.attend(**given._asdict()).double()
    wanted = by_hand(case)
    gaps = (found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    tolerance = SHORT_TOLERANCE
    if use.dtype is torch.float32:
        tolerance = LONG_TOLERANCE[slot_attention.precision_of(case.query)]
    worst = int(gaps.nan_to_num(torch.inf).argmax())
    gap = float(gaps[worst])
    if not gap <= tolerance:
        raise FastPathFailed(
            "attention",
            f"the kernel is {gap:.2g} off ({what} columns, the row that ends at column "
            f"{int(case.last[worst, -1])}), at most {tolerance:g}",
        )


def _in_pages(case: Case) -> Case:
    """The case with keys, values and their scales in shuffled pages."""
    slots, _, columns = case.keys.shape[:3]
    width = -(-columns // PAGE_POSITIONS)
    order = torch.randperm(slots * width, generator=torch.Generator().manual_seed(columns))
    table = order.to(case.slots.device).view(slots, width)

    def paged(rows: Tensor) -> Tensor:
        padding = width * PAGE_POSITIONS - columns
        filled = torch.cat((rows, rows[:, :, :1].expand(-1, -1, padding, *rows.shape[3:])), 2)
        pages = torch.unflatten(filled, 2, (width, PAGE_POSITIONS)).transpose(1, 2).flatten(0, 1)
        # In the order of a cache: heads first in memory.
        by_head = torch.empty_like(pages.transpose(0, 1).contiguous()).transpose(0, 1)
        by_head[table.flatten()] = pages
        return by_head

    names = ("keys", "values", "key_scales", "value_scales")
    kept = {name: getattr(case, name) for name in names}
    pages: dict[str, Any] = {name: paged(rows) for name, rows in kept.items() if rows is not None}
    return case._replace(**pages, table=table)


def by_hand(case: Case) -> Tensor:
    """Attention with softmax and sums in float64, (B, T, H, D)."""
    rows, tokens, heads, width = case.query.shape
    columns = torch.arange(case.reads, device=case.query.device)
    seen = (columns <= case.last[:, :, None]) & (columns >= case.first[:, None, None])
    if case.mask is not None:
        seen = seen & case.mask[:, None]
    read: list[Tensor] = []
    for numbers, scale in ((case.keys, case.key_scales), (case.values, case.value_scales)):
        mine = numbers[case.slots, :, : case.reads].double()
        if scale is not None:
            mine = from_eight_bits(mine, scale[case.slots, :, : case.reads], torch.float64)
        # A column that no token of the row sees may contain any value.
        read.append(mine.masked_fill(~seen.any(1)[:, None, :, None], 0.0))
    keys, values = read
    query = case.query.double().view(rows, tokens, keys.shape[1], -1, width)
    scores = torch.einsum("btkgd,bkcd->btkgc", query, keys) / width**0.5
    weights = torch.softmax(scores.masked_fill(~seen[:, :, None, None], -torch.inf), -1)
    return torch.einsum("btkgc,bkcd->btkgd", weights, values).reshape(rows, tokens, heads, width)


def fused(chosen: LoadChoice, *, has_small_caches: bool) -> None:
    """Compare the kernels between products with PyTorch's operators, in both decoders' sizes.

    Args:
        has_small_caches: keys and values are written in 8 bits.
    """
    decoders: list[DecoderConfig] = [chosen.config.language]
    if chosen.config.has_tts:
        decoders.append(SpeechConfig.from_json(chosen.config.tts))
    for config in decoders:
        if config.hidden_act != "silu":
            raise FastPathFailed("fused", f"its kernel knows no activation {config.hidden_act!r}")
        for tokens in (1, len(SLOTS), len(SLOTS) * UNIT_TOKENS):
            _compare_fused(config, tokens, chosen.device, chosen.dtype, has_small_caches)


def _compare_fused(
    config: DecoderConfig, tokens: int, device: torch.device, dtype: torch.dtype, is_eight_bit: bool
) -> None:
    random = torch.Generator(device=device).manual_seed(tokens)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=random, device=device).to(dtype)

    def same(found: Tensor, wanted: Tensor, what: str) -> None:
        hold("fused", found, wanted, SHORT_TOLERANCE, f"{what} of {tokens} tokens")

    wide, eps = config.hidden_size, config.rms_norm_eps
    x, added, weight = normal(tokens, wide), normal(tokens, wide), normal(wide)
    total, normed = fused_kernels.add_norm(x, added, weight, eps)
    same(total, x + added, "sums")
    same(normed, F.rms_norm(x + added, weight.shape, weight, eps), "norms")
    gates, ups = normal(tokens, 2 * config.intermediate_size).chunk(2, -1)
    same(fused_kernels.gate(gates, ups), F.silu(gates) * ups, "gates")
    width, first, keyed = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    heads = normal(tokens, first + 2 * keyed, width)
    norms: tuple[Tensor | None, Tensor | None] = (None, None)
    if config.has_norms:
        norms = (normal(width), normal(width))
    turn = rotary(10 * torch.randn(tokens, 1, width // 2, generator=random, device=device))
    cos, sin = (table.to(dtype) for table in turn)
    columns = torch.randperm(2 * tokens + 8, generator=random, device=device)[:tokens]
    query, keys, values = torch.split(heads, [first, keyed, keyed], 1)
    caches = [
        SlotCache(
            layers=1, rows=1, heads=keyed, capacity=2 * tokens + 7, head_dim=width,
            dtype=dtype, device=device, is_eight_bit=is_eight_bit,
        )
        for _ in range(2)
    ]  # fmt: skip
    flat = (query.flatten(1), keys.flatten(1), values.flatten(1))
    given = (*flat, *norms, cos, sin, columns, *caches[0].layer(0), eps)
    found = fused_kernels.place_heads(*given)
    if norms[0] is not None:
        query, keys = (
            F.rms_norm(part, (width,), norm, eps)
            for part, norm in zip((query, keys), norms, strict=True)
        )
    query, keys = rotated(query, cos, sin), rotated(keys, cos, sin)
    same(found, query, "queries")
    caches[1]._store(0, columns, keys.transpose(0, 1), values.transpose(0, 1))
    for kept, wanted in zip(*(cache.view(0, 0, 2 * tokens + 8) for cache in caches), strict=True):
        same(kept, wanted, "keys or values")


def eight_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Write numbers in 8 bits and read them back."""
    random = torch.Generator(device=device).manual_seed(6)
    wide = torch.randn(64, 128, generator=random, device=device)
    again = from_eight_bits(*to_eight_bits(wide), dtype).float()
    hold("caches", again, wide, 1e-2, "numbers kept in 8 bits")


INT4_SHAPE: Final = (256, 1024)
INT4_ROWS: Final = (1, 7, 17, 33, 65, 91, 128, 8448)
"""Each is a separate program, which must not be compiled during conversations; the last one has as
many blocks of rows and outputs as fill a card."""

WIDE_SHAPE: Final = (16384, 256)
"""With so many outputs, products of few rows with 8 bits are another program."""


def int4(device: torch.device, dtype: torch.dtype) -> None:
    """Compare products of few rows with a matrix in 4 bits with those of the unpacked matrix."""
    layer, wanted, random = _in_four_bits("int4", device, dtype)
    hold("int4", layer.unpacked(), wanted, 1e-2, "a matrix that was packed and unpacked")
    for rows in (rows for rows in INT4_ROWS if rows <= FEW_ROWS):
        x = torch.randn(rows, wanted.shape[1], generator=random, device=device).to(dtype)
        hold("int4", layer(x), x.float() @ wanted.T, INT4_TOLERANCE, f"products of {rows} rows")


def int4_kernels(device: torch.device, dtype: torch.dtype) -> None:
    """The same of many rows; of few, those with a matrix in 8 bits, such as the head of
    `smallest`."""
    layer, wanted, random = _in_four_bits("int4_kernels", device, dtype)
    head = RowQuantizedLinear(torch.randn(WIDE_SHAPE, generator=random, device=device).to(dtype))
    for rows in INT4_ROWS:
        few = rows <= FEW_ROWS
        columns = WIDE_SHAPE[1] if few else wanted.shape[1]
        x = torch.randn(rows, columns, generator=random, device=device).to(dtype)
        found, product = (head(x), head.in_pieces(x)) if few else (layer(x), x.float() @ wanted.T)
        hold("int4_kernels", found, product, INT4_TOLERANCE, f"products of {rows} rows")


def _in_four_bits(
    part: str, device: torch.device, dtype: torch.dtype
) -> tuple[Int4Linear, Tensor, torch.Generator]:
    """A layer, its matrix, and the generator of both.

    Raises:
        FastPathFailed: the part's kernel does not support the layer.
    """
    if not fits_int4(INT4_SHAPE, device):
        raise FastPathFailed(part, f"its kernel takes no matrix of shape {INT4_SHAPE}")
    random = torch.Generator(device=device).manual_seed(5)
    groups = grouped(torch.randn(INT4_SHAPE, generator=random, device=device).to(dtype))
    return Int4Linear(groups, dtype), groups.weight(), random


def products(device: torch.device, dtype: torch.dtype) -> None:
    """Products of few rows with three matrices."""
    random = torch.Generator(device=device).manual_seed(9)
    for columns in (768, 4096):
        sizes = (192, 64, 100)
        parts = [nn.Linear(columns, size, bias=False, device=device, dtype=dtype) for size in sizes]
        for part in parts:
            part.weight.data.normal_(generator=random)
        for rows in (1, 2, 7, 16):
            x = torch.randn(rows, columns, generator=random, device=device).to(dtype)
            for part, found in zip(parts, of_all(x, *parts, has_kernel=True), strict=True):
                what = f"products of {rows} rows of {columns} numbers"
                hold("products", found, x.float() @ part.weight.float().T, SHORT_TOLERANCE, what)


def fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Products with a matrix in 8 bits of few and many rows, one of which is zeros."""
    random = torch.Generator(device=device).manual_seed(7)
    for shape in ((256, 768), (256, 1024), WIDE_SHAPE):
        layer = Fp8Linear(torch.randn(shape, generator=random, device=device).to(dtype))
        for rows in (1, 7, 17, 33, 65):
            x = torch.randn(rows, shape[1], generator=random, device=device).to(dtype)
            x[rows // 2] *= 0.0 if rows > 1 else 100.0
            product = x.float() @ layer.unpacked().T
            hold("fp8", layer(x), product, SHORT_TOLERANCE, f"products of {rows} rows")


def precision(device: torch.device, name: str) -> None:
    """Compare float32 products in a shorter precision with the CPU's in float64."""
    random = torch.Generator().manual_seed(4)
    left, right = torch.randn(2, 256, 256, generator=random)
    wave, taps = torch.randn(1, 64, 200, generator=random), torch.randn(64, 64, 3, generator=random)
    dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
    tolerance = PRECISION_TOLERANCE[name]
    set_precision(name)  # type: ignore[arg-type]
    here = [one.to(device, dtype) for one in (left, right, wave, taps)]
    product = (left.double() @ right.double()).float()
    hold("flow_precision", here[0] @ here[1], product, tolerance, "products")
    sound = torch.conv1d(wave.double(), taps.double()).float()
    hold("flow_precision", torch.conv1d(here[2], here[3]), sound, tolerance, "convolutions")


def graph(device: torch.device, capture: GraphCapture | None = None) -> None:
    """Capture a small step and replay it with other numbers."""
    runner = GraphRunner(device, capture or CudaGraphCapture(device))
    weight = torch.eye(64, device=device) * 2.0

    def step(x: Tensor) -> tuple[Tensor, ...]:
        return (x @ weight + 1.0,)

    for start in (0.0, 5.0):
        x = torch.full((4, 64), start, device=device)
        (made,) = runner.run("trial", 4, step, [x])
        if runner.refusals:
            raise FastPathFailed("graph_trial", runner.refusals["trial"])
        hold("graph_trial", made, 2.0 * x + 1.0, 1e-5, "a replay")


def stream(device: torch.device) -> None:
    """Compute a product on a separate stream, as the priming of voices does, and read it on the
    usual stream."""
    random = torch.Generator(device=device).manual_seed(8)
    x = torch.randn(256, 256, generator=random, device=device)
    here = torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(here)
    with torch.cuda.stream(side):
        product = x @ x
    here.wait_stream(side)
    wanted = (x.double() @ x.double()).float()
    hold("stream", product + 0.0, wanted, SHORT_TOLERANCE, "products on another stream")
