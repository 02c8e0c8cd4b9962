"""Fast parts that cannot be built, that compute something else, or that fail while they serve.

There is no card here. The kernel's place is taken by stand-ins on a CPU: one that is right, ones
that raise what Triton raises, and ones that lie.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.contracts.conversations import Cast, Outcome, Style, assert_same
from tests.support.fake_capture import FakeCapture
from tests.support.long import IS_LONG
from tests.support.tiny_voice import tiny_token2wav
from torch import Tensor
from torch.nn import functional as F

from parley.engine.model import DeviceFault
from parley.engine.work import StartSession, Work
from parley.errors import InferenceFailed, SetupError
from parley.models.minicpmo45 import ladder, loading, quantize, runtime, stages, trials
from parley.models.minicpmo45.config import make_config
from parley.models.minicpmo45.llm import steps
from parley.models.minicpmo45.load_choice import LoadChoice, asked
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.random_model import small_sizes
from parley.models.minicpmo45.runtime import fused, products, slot_attention
from parley.models.minicpmo45.runtime.attention import FusedAttention, SlotAttention
from parley.models.minicpmo45.runtime.caches import rotated, to_eight_bits
from parley.models.minicpmo45.runtime.fast_paths import FastPathFailed, FastPaths
from parley.models.minicpmo45.runtime.graphs import GraphRunner
from parley.models.minicpmo45.token2wav.token2wav import Token2Wav
from parley.settings import ModelSettings

pytestmark = pytest.mark.timeout(600)

CPU = torch.device("cpu")

SETTINGS = ModelSettings(
    name="minicpmo45", device="cpu", random_weights=True, slots=2, context_tokens=2048
)

STYLE = Style(speaks=False, max_new_tokens=4)

REAL_ATTEND = slot_attention.attend
REAL_FUSED = {name: getattr(fused, name) for name in ("add_norm", "place_heads", "gate")}


class OutOfResources(Exception):
    """As Triton's: derived from nothing that says more."""


FAILURES: dict[str, BaseException] = {
    "no Python.h": subprocess.CalledProcessError(1, ["gcc", "main.c", "-I/usr/include/python3.12"]),
    "shared memory": OutOfResources("out of resource: shared memory, Required: 114688"),
}


class Unbuildable:
    """In place of the module of kernels: none of them can be built."""

    def __init__(self, failure: BaseException) -> None:
        self._failure = failure

    def __getattr__(self, name: str) -> Any:
        raise self._failure


def by_hand(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    first: Tensor,
    last: Tensor,
    reads: int,
    mask: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """A kernel that is right."""

    def rows(pages: Any) -> Any:
        if table is None or pages is None:
            return pages
        return pages[table].transpose(1, 2).flatten(2, 3)

    kept = (rows(keys), rows(values), slots, first, last, reads, mask)
    case = trials.Case(query, *kept, rows(key_scales), rows(value_scales))
    return trials.by_hand(case).to(query.dtype)


def plain_few_rows(x: Tensor, matrices: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    return torch.cat([F.linear(x, matrix) for matrix in matrices], 1)


def plain_add_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + added
    return total, F.rms_norm(total, weight.shape, weight, eps)


def plain_place_heads(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    columns: Tensor,
    kept_keys: Tensor,
    kept_values: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
    eps: float,
) -> Tensor:
    width = kept_keys.shape[2]
    cos, sin = cos.view(-1, 1, width), sin.view(-1, 1, width)
    turned = []
    for part, norm in ((query, query_norm), (keys, key_norm)):
        heads = part.unflatten(1, (-1, width))
        normed = heads if norm is None else F.rms_norm(heads, (width,), norm, eps)
        turned.append(rotated(normed, cos, sin))
    wide = values.unflatten(1, (-1, width))
    ways = ((kept_keys, key_scales, turned[1]), (kept_values, value_scales, wide))
    for kept, scales, part in ways:
        given = part.transpose(0, 1)
        if scales is not None:
            given, of_given = to_eight_bits(given)
            scales[:, columns.flatten()] = of_given
        kept[:, columns.flatten()] = given
    return turned[0]


def half_the_query(query: Tensor, *rest: Any, **named: Any) -> Tensor:
    return 0.5 * query


def one_column_off(*given: Any, last: Tensor, **named: Any) -> Tensor:
    return by_hand(*given, last=(last - 1).clamp(min=0), **named)


def another_slot(
    query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, **named: Any
) -> Tensor:
    return by_hand(query, keys, values, torch.zeros_like(slots), **named)


def pages_in_order(*given: Any, table: Tensor | None = None, **named: Any) -> Tensor:
    if table is not None:
        table = torch.arange(table.numel(), device=table.device).view(table.shape)
    return by_hand(*given, table=table, **named)


def not_a_number(query: Tensor, *rest: Any, **named: Any) -> Tensor:
    return torch.full_like(query, torch.nan)


LIES: dict[str, Callable[..., Tensor]] = {
    "half the query": half_the_query,
    "one column off": one_column_off,
    "another slot": another_slot,
    "pages in order": pages_in_order,
    "not a number": not_a_number,
}


def wished() -> LoadChoice:
    sizes = small_sizes()
    return asked(SETTINGS, CPU, sizes.config, sizes.flow, torch.float32)


def without_graphs(chosen: LoadChoice, paths: FastPaths) -> GraphRunner:
    return GraphRunner(chosen.device)


def with_graphs(capture: Callable[[], FakeCapture]) -> Callable[..., GraphRunner]:
    """Captures what steps there are."""

    def made(chosen: LoadChoice, paths: FastPaths) -> GraphRunner:
        return GraphRunner(chosen.device, capture(), paths=paths)

    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose kernel may be tried, and is right."""
    monkeypatch.setattr(ladder, "why_no_kernel", lambda device: None)
    monkeypatch.setattr(slot_attention, "attend", by_hand)
    monkeypatch.setattr(products, "few_rows", plain_few_rows)
    monkeypatch.setattr(fused, "add_norm", plain_add_norm)
    monkeypatch.setattr(fused, "place_heads", plain_place_heads)
    monkeypatch.setattr(fused, "gate", lambda gates, ups: F.silu(gates) * ups)
    monkeypatch.setattr(trials, "LONG_READS", 600)
    monkeypatch.setattr(loading, "_graphs", without_graphs)


@pytest.fixture
def capturing(card: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that captures, too."""
    monkeypatch.setattr(loading, "_graphs", with_graphs(FakeCapture))


def loaded(*, speaks: bool = False, **changes: Any) -> MiniCPMO45:
    """Loaded and captured; the conversations of a warm-up are left out, what makes speech is where
    nobody speaks (half of the graphs), and pictures have the size of one camera instead of four."""

    def token2wav(*, shape: Any, channels: int, steps: int, **options: Any) -> Token2Wav:
        return tiny_token2wav(**options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "random_token2wav", token2wav)
        patched.setattr(stages, "CAMERAS", stages.CAMERAS[:1])
        if not speaks:
            patched.setattr(loading, "_speech_output", lambda *_, **__: (None, None))
        model = loading.load(SETTINGS.model_copy(update=changes), small_sizes())
        model._capture()
    model.graphs.seal()
    # Batches as on a card.
    model.steps._is_padded = True
    return model


def talk(model: MiniCPMO45, style: Style = STYLE) -> list[Outcome]:
    """Two half-duplex turns next to two others; of spoken ones, which are dear, one each."""
    end = 4 if style.speaks else 6
    parts: dict[int, Sequence[Work]] = {row: style.turns(seed=3 + row)[:end] for row in range(2)}
    outcomes = Cast(model).play_together(parts, delays={0: 0, 1: 2})
    return [*outcomes[0], *outcomes[1]]


@pytest.fixture(scope="module")
def wanted() -> list[Outcome]:
    """What the plain path says."""
    return talk(loaded())


@pytest.fixture(scope="module")
def wanted_small() -> list[Outcome]:
    """The same with caches in 8 bits."""
    return talk(loaded(kv_cache_dtype="int8"))


def test_a_kernel_that_is_right_serves(capturing, wanted):
    model = loaded()

    assert isinstance(model.llm.attention, SlotAttention)
    assert model.fast_paths["attention"] == "fast"
    assert model.fast_paths["fused"] == model.fast_paths["products"] == "fast"
    assert model.fast_paths["graph_decode"] == "fast"
    assert_same(wanted, talk(model), 2e-3)


FUSED = ("add_norm", "place_heads", "gate")


@pytest.mark.parametrize("name", FUSED)
def test_a_kernel_between_products_that_cannot_be_built_steps_down(card, monkeypatch, name):
    monkeypatch.setattr(runtime, "kernels", Unbuildable(FAILURES["shared memory"]), raising=False)
    monkeypatch.setattr(fused, name, REAL_FUSED[name])

    model = loaded()

    assert model.fast_paths["attention"] == "fast"
    assert model.fast_paths["fused"].startswith("plain: OutOfResources: ")
    assert not model.llm.attention.is_fused


@pytest.mark.parametrize("has_small_caches", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_a_kernel_between_products_that_lies_is_found_out(
    card, monkeypatch, name, has_small_caches
):
    real = getattr(fused, name)

    def lying(*given: Any) -> Any:
        """What is placed goes into the next token's place; other results are a tenth off."""
        if name == "place_heads":
            return real(*given[:7], given[7].roll(1, -1), *given[8:])
        made = real(*given)
        return (made[0], made[1] * 1.1) if name == "add_norm" else made * 1.1

    monkeypatch.setattr(fused, name, lying)

    with pytest.raises(FastPathFailed, match="off, at most") as caught:
        trials.fused(wished(), has_small_caches=has_small_caches)

    assert caught.value.part == "fused"


@pytest.mark.parametrize("is_lying", [False, True], ids=["raises", "lies"])
def test_products_of_few_rows_that_fail_step_down(card, wanted, monkeypatch, is_lying):
    def broken(x: Tensor, *given: Any) -> Tensor:
        if not is_lying:
            raise FAILURES["shared memory"]
        made = plain_few_rows(x, *given)
        made[-1] *= 1.1
        return made

    monkeypatch.setattr(products, "few_rows", broken)

    model = loaded()

    reason = "products of 1 rows" if is_lying else "OutOfResources: "
    assert model.fast_paths["products"].startswith(f"plain: {reason}")
    assert model.fast_paths["fused"] == "fast"
    assert not model.llm.attention.has_products
    assert_same(wanted, talk(model), 2e-3)


@pytest.mark.parametrize(
    ("part", "module", "name", "other"),
    [("products", products, "few_rows", "fused"), ("fused", fused, "gate", "attention")],
    ids=["products", "between products"],
)
def test_a_kernel_that_fails_while_it_serves_steps_down_alone(
    card, wanted, monkeypatch, part, module, name, other
):
    monkeypatch.setattr(products, "COLUMNS", 2)
    model = loaded()
    launched = []

    def broken(*given: Any) -> Any:
        launched.append(given)
        raise FastPathFailed(part, "launch failed")

    monkeypatch.setattr(module, name, broken)

    assert_same(wanted, talk(model), 2e-3)

    assert len(launched) == 1
    assert model.fast_paths[part] == "plain: launch failed"
    assert model.fast_paths[other] == "fast"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_kernel_that_cannot_be_built_steps_down(card, monkeypatch, failure):
    monkeypatch.setattr(slot_attention, "attend", REAL_ATTEND)
    monkeypatch.setattr(runtime, "kernels", Unbuildable(failure), raising=False)

    model = loaded()

    assert type(model.llm.attention) is FusedAttention
    said = model.fast_paths["attention"]
    assert said.startswith(f"plain: {type(failure).__name__}: ")
    assert "\n" not in said


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_kernel_that_lies_is_found_out(card, monkeypatch, lie):
    monkeypatch.setattr(slot_attention, "attend", lie)

    with pytest.raises(FastPathFailed, match="the kernel is"):
        trials.attention(wished(), has_small_caches=False)


@pytest.mark.parametrize("lie", [another_slot, not_a_number] if IS_LONG else [another_slot])
def test_a_kernel_that_lies_in_steps_only_is_found_out_on_filled_caches(
    capturing, wanted, monkeypatch, lie
):
    """As a driver would that computes one shape wrongly: the trial saw nothing. A single column
    more or less is lost in what all layers round; only the trial finds that."""
    monkeypatch.setattr(trials, "attention", lambda *given, **named: None)
    monkeypatch.setattr(slot_attention, "attend", lie)

    model = loaded(speaks=True)

    assert not model.llm.attention.reads_in_place
    assert not model.network.apm.attention.reads_in_place
    assert model.speech_output is not None
    assert not model.speech_output.decoder.attention.reads_in_place
    assert model.fast_paths["graph_decode"] == "fast"
    assert_same(wanted, talk(model), 2e-3)

    # Each network finds it out by itself, in its first layer.
    model.llm.attention.reads_in_place = True
    captures: dict[str, Callable[[], None]] = {
        "decode steps": model.steps.capture,
        "sound steps": partial(stages.capture_encoders, model),
        "speech steps": model.speech_output.decoder.capture,
    }
    for steps_of, capture in captures.items():
        found = f"{steps_of}.* layer 0, are .* off, at most"
        with pytest.raises(FastPathFailed, match=found), torch.inference_mode():
            capture()


@pytest.mark.parametrize("kind", ["none", "fp8"] if IS_LONG else ["fp8"])
def test_a_kernel_that_rounds_otherwise_serves_however_the_products_round(
    capturing, monkeypatch, kind
):
    """Last bits of bfloat16 decide which way fp8 rounds, in every layer again. Units of sound do;
    contexts of all lengths, and pictures, are the same code."""
    monkeypatch.setattr(steps, "PICTURE_ROWS", 0)
    monkeypatch.setattr(steps, "reaches", lambda least, most: [least])
    raw = {**small_sizes().config.raw, "num_hidden_layers": 24}
    sizes = replace(small_sizes(), config=make_config(raw))
    settings = SETTINGS.model_copy(update={"quantize": kind, "dtype": "bfloat16", "slots": 1})

    model = loading.load(settings, sizes)
    for one in model.llm.model.layers.modules():
        # As loud as those of the published width.
        if isinstance(one, products.Fp8Linear):
            one.scales.mul_(6)
        elif isinstance(one, torch.nn.Linear):
            one.weight.mul_(6)
    model.steps.capture()

    assert model.fast_paths["attention"] == "fast"
    assert model.graphs.counts["decode"]


def test_a_kernel_that_cannot_read_eight_bits_steps_down(card, wanted_small, monkeypatch):
    def lying(*given: Any, **named: Any) -> Tensor:
        if named["key_scales"] is not None:
            return half_the_query(*given, **named)
        return by_hand(*given, **named)

    monkeypatch.setattr(slot_attention, "attend", lying)

    model = loaded(kv_cache_dtype="int8")

    assert model.context.is_eight_bit
    assert model.fast_paths["caches"].startswith("plain: the kernel is")
    assert "cannot read caches in 8 bits" in model.fast_paths["attention"]
    assert_same(wanted_small, talk(model), 2e-3)


def test_eight_bits_that_do_not_come_back_are_not_used(card, wanted, monkeypatch):
    def broken(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numbers.shape, dtype=dtype)

    monkeypatch.setattr(trials, "from_eight_bits", broken)

    model = loaded(kv_cache_dtype="int8")

    assert not model.context.is_eight_bit
    assert model.fast_paths["caches"].startswith("plain: ")
    assert_same(wanted, talk(model), 2e-3)


class RaisingCapture(FakeCapture):
    """One that cannot capture, as a library that synchronises."""

    def record(self, step: Callable[[], tuple[Tensor, ...]]) -> Any:
        raise OutOfResources("operation not permitted when stream is capturing")


class LyingCapture(FakeCapture):
    """One whose replays do nothing."""

    def record(self, step: Callable[[], tuple[Tensor, ...]]) -> Any:
        _, results = super().record(step)
        for result in results:
            result.zero_()
        return (lambda: None), results


@pytest.mark.parametrize("capture", [RaisingCapture, LyingCapture])
def test_graphs_that_cannot_be_captured_or_lie_step_down(card, wanted, monkeypatch, capture):
    monkeypatch.setattr(loading, "_graphs", with_graphs(capture))

    model = loaded(speaks=True)

    kinds = ("decode", "speech", "flow", "vocoder", "sound", "picture")
    assert all(model.fast_paths[f"graph_{kind}"].startswith("plain: ") for kind in kinds)
    assert model.graphs.counts == {}
    assert_same(wanted, talk(model), 2e-3)


def test_int4_products_that_lie_are_made_of_unpacked_matrices(monkeypatch):
    wanted = talk(loaded(quantize="int4"))

    def broken(x: Tensor, *rest: Any) -> Tensor:
        return torch.zeros(x.shape[0], rest[0].shape[0])

    monkeypatch.setattr(torch, "_weight_int4pack_mm_for_cpu", broken)

    model = loaded(quantize="int4")

    assert model.fast_paths["int4"].startswith("plain: ")
    layers = [one for one in model.llm.modules() if isinstance(one, quantize.Int4Linear)]
    assert layers
    assert all(layer.is_plain for layer in layers)
    assert_same(wanted, talk(model), 2e-3)


def test_fp8_products_that_fail_are_made_of_unpacked_matrices(monkeypatch):
    """While they serve, or when a model is loaded."""
    serving, plain = loaded(quantize="fp8"), loaded(quantize="fp8")
    assert serving.fast_paths["fp8"] == "fast"
    quantize.unpack(plain.network, "fp8")
    wanted = talk(plain)

    def broken(*given: Any, **named: Any) -> Tensor:
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(products, "many_rows", broken)

    for model in (serving, loaded(quantize="fp8")):
        assert_same(wanted, talk(model), 2e-3)
        assert model.fast_paths["fp8"].startswith("plain: RuntimeError: CUBLAS")


@pytest.mark.parametrize("part", ["int4", "fp8"])
def test_graphs_that_hold_a_product_go_with_it(card, monkeypatch, part):
    monkeypatch.setattr(loading, "_graphs", with_graphs(FakeCapture))
    model = loaded(quantize=part, attention="sdpa")
    assert "decode" in model.graphs.counts

    model.step_down(part, "the card refused it")

    assert not {"decode", "feed"} & set(model.graphs.counts)
    assert "sound" in model.graphs.counts
    assert model.fast_paths["graph_decode"] == (
        f"plain: captured with the part '{part}', which has failed"
    )
    assert model.fast_paths["graph_sound"] == "fast"


@pytest.mark.parametrize("is_lying", [False, True], ids=["raises", "lies"])
def test_a_precision_that_fails_gives_way_to_float32(monkeypatch, is_lying):
    chosen: list[str] = []
    for module in (trials, ladder):
        monkeypatch.setattr(module, "set_precision", chosen.append)
    real = torch.conv1d

    def broken(x: Tensor, weight: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            return real(x, weight)
        if is_lying:
            return 1.1 * real(x, weight)
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    monkeypatch.setattr(torch, "conv1d", broken)
    real_precision = trials.precision
    monkeypatch.setattr(trials, "precision", lambda device, name: real_precision(CPU, name))
    paths = FastPaths()

    ladder._flow_dtype(replace(wished(), device=torch.device("cuda")), paths)

    assert paths.states["flow_precision"].state == "plain"
    assert chosen == ["tf32", "float32"]


# While it serves.


@pytest.fixture
def failing_later(card: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A kernel that is right until `act` says otherwise. Without graphs: a replay runs no Python on
    a card."""
    now: dict[str, Any] = {"act": by_hand}
    monkeypatch.setattr(
        slot_attention, "attend", lambda *given, **named: now["act"](*given, **named)
    )
    return now


def raising(*given: Any, **named: Any) -> Tensor:
    raise FastPathFailed("attention", "launch failed")


class Lying:
    """A kernel whose results are sometimes not a number, in the last layer of a decode step:
    what is written into caches stays sound.

    Args:
        when: by the number of the step, from 1.
        width: of a head: 32 in the language model, 16 in the speech decoder. Both have two layers.
    """

    def __init__(self, when: Callable[[int], bool], width: int = 32) -> None:
        self.when, self.calls, self.width = when, 0, width

    def __call__(self, query: Tensor, *rest: Any, **named: Any) -> Tensor:
        made = by_hand(query, *rest, **named)
        if query.shape[3] != self.width or query.shape[1] != 1:
            return made
        self.calls += 1
        is_last = self.calls % 2 == 0
        return made * torch.nan if is_last and self.when(self.calls // 2) else made


def test_scores_that_are_not_finite_are_computed_again_by_the_plain_path(failing_later, wanted):
    model = loaded()
    failing_later["act"] = kernel = Lying(lambda step: step == 2)

    assert_same(wanted, talk(model), 2e-3)

    assert kernel.calls > 4
    assert model.fast_paths["attention"] == "fast"


@pytest.mark.parametrize(
    ("act", "reason"),
    [(raising, "launch failed"), (Lying(lambda step: True), "its scores were not finite")],
    ids=["raises", "not finite"],
)
def test_a_kernel_that_fails_again_and_again_steps_down_unheard(failing_later, wanted, act, reason):
    model = loaded()
    assert model.fast_paths["attention"] == "fast"
    failing_later["act"] = act

    assert_same(wanted, talk(model), 2e-3)

    assert model.fast_paths["attention"] == f"plain: {reason}"


def test_a_row_whose_scores_are_not_finite_either_way_ends_with_an_error(failing_later):
    model = loaded()
    model.paths.settle("fp8", "fast")
    cast = Cast(model)
    works = STYLE.turns(seed=3)
    assert isinstance(works[0], StartSession)
    cast.play(0, works[:3])
    # Everything that it remembers.
    model.context.keys[:, :, : model.context.page] = torch.nan

    with pytest.raises(InferenceFailed, match="not finite"):
        cast.play(0, works[3:])

    for part in ("attention", "fp8"):
        assert model.fast_paths[part] == "plain: its scores were not finite"
    # Others are served.
    assert Cast(model).play(1, STYLE.turns(seed=3))


SPEAKING = Style(speaks=True, max_new_tokens=4)


@pytest.fixture(scope="module")
def wanted_speech() -> list[Outcome]:
    """What the plain path says aloud."""
    return talk(loaded(speaks=True), SPEAKING)


def test_speech_scores_that_are_not_finite_are_computed_again_by_the_plain_path(
    failing_later, wanted_speech
):
    model = loaded(speaks=True)
    failing_later["act"] = kernel = Lying(lambda step: True, width=16)

    assert_same(wanted_speech, talk(model, SPEAKING), 2e-3)

    assert kernel.calls > 2
    assert model.fast_paths["attention"] == "plain: its scores were not finite"


def test_a_row_whose_speech_scores_are_not_finite_either_way_ends_alone(
    capturing, wanted_speech, monkeypatch
):
    # The graphs of what follows the decoder play no part, and are the dearest.
    monkeypatch.setattr(Token2Wav, "capture", lambda token2wav: None)
    model = loaded(speaks=True)
    assert model.speech_output is not None
    decoder = model.speech_output.decoder
    real = decoder.condition
    spoiled: list[int] = []

    def condition(ids: Sequence[int], hidden: Tensor, **named: Any) -> Tensor:
        """The first answer has no states."""
        made = real(ids, hidden, **named)
        if not spoiled:
            spoiled.append(1)
            return made * torch.nan
        return made

    monkeypatch.setattr(decoder, "condition", condition)

    with pytest.raises(InferenceFailed, match="speech decoder's scores are not finite"):
        Cast(model).play(0, SPEAKING.turns(seed=3))

    assert model.fast_paths["attention"] == "plain: its scores were not finite"
    assert model.fast_paths["graph_speech"] == "plain: its scores were not finite"
    # What was written there does no harm.
    assert_same(wanted_speech, talk(model, SPEAKING), 2e-3)


ILLEGAL = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

REPORTS = {
    "CUDA": ILLEGAL,
    "Triton": RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
}
"""How libraries report a card that has failed."""


def out_of_bounds(*given: Any, **named: Any) -> Tensor:
    raise ILLEGAL


def test_a_card_that_failed_is_started_with_our_kernels_plain(
    failing_later, wanted, monkeypatch, tmp_path
):
    """Such a card cannot step down: the process ends, and starts again."""
    faults = tmp_path / "new" / "faults.json"
    monkeypatch.setattr(loading, "faults", lambda: faults)
    model = loaded()
    Cast(model).play(0, STYLE.turns(seed=3))
    failing_later["act"] = out_of_bounds

    with pytest.raises(DeviceFault, match="illegal memory access"):
        Cast(model).play(0, STYLE.turns(seed=3))

    again = loaded()
    for part in ("attention", "fused", "products"):
        assert again.fast_paths[part].startswith("plain: ")
    assert str(faults) in again.fast_paths["attention"]
    assert "CUDA error: an illegal" in again.fast_paths["attention"]
    assert_same(wanted, talk(again), 2e-3)
    failing_later["act"] = by_hand
    os.utime(faults, (0, 0))
    assert loaded().fast_paths["attention"] == "fast"


@pytest.mark.parametrize("report", REPORTS)
def test_a_part_whose_trial_makes_the_card_fail_is_plain_at_the_next_start(
    monkeypatch, tmp_path, report
):
    def synchronize() -> None:
        raise ILLEGAL

    def failing() -> None:
        raise REPORTS[report]

    with monkeypatch.context() as failed:
        failed.setattr(torch.cuda, "is_initialized", lambda: True)
        failed.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        failed.setattr(torch.cuda, "synchronize", synchronize)
        with pytest.raises(SetupError, match="trial of the fast part 'products': CUDA error"):
            FastPaths(faults=tmp_path / "faults.json").tried("products", failing)

    again = FastPaths(faults=tmp_path / "faults.json")
    assert not again.tried("products", lambda: None)
    assert again.in_words()["products"].startswith("plain: the card failed with it")
    assert again.tried("fused", lambda: None)


def test_a_kernel_that_cuda_refuses_does_not_fail_the_card():
    def refused() -> None:
        raise torch.AcceleratorError("CUDA error: no kernel image is available for execution")

    paths = FastPaths()

    assert not paths.tried("products", refused)
    assert paths.in_words()["products"].startswith("plain: AcceleratorError: CUDA error: no kernel")


def test_strict_refuses_instead_of_stepping_down(card, monkeypatch):
    monkeypatch.setattr(slot_attention, "attend", half_the_query)

    with pytest.raises(SetupError, match=r"'attention'.*model\.strict.*the kernel is") as caught:
        loaded(strict=True)

    assert "doctor --try" in caught.value.hint


def test_strict_fails_the_request_while_it_serves(failing_later):
    model = loaded(strict=True)
    failing_later["act"] = raising

    with pytest.raises(SetupError, match="launch failed"):
        talk(model)

    assert model.fast_paths["attention"] == "refused: launch failed"


def test_without_a_card_everything_is_plain_and_says_why():
    model = loaded()

    assert all(state.startswith("plain: ") for state in model.fast_paths.values())
    assert "needs an NVIDIA GPU" in model.fast_paths["attention"]
