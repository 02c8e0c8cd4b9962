"""The contract of every model, as tests. See `parley.engine.model`.

    class TestMine(ModelContract):
        @classmethod
        def make(cls):
            return Mine(rows=3)

The model is created once per class and needs three rows. Override the class attributes if the model
requires it: on a GPU a `tolerance` for samples, and a `style` with `is_greedy` if rounding would
change sampling.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pytest
from tests.contracts.conversations import (
    Cast,
    Outcome,
    Style,
    assert_same,
    closing,
    known,
    quiet,
    turn,
    unit,
    voice,
)
from tests.support.long import IS_LONG, times

from parley.engine.model import Model
from parley.engine.segments import Audio, Marker, Text
from parley.engine.segments import Mark as Place
from parley.engine.work import (
    Ending,
    Finalize,
    FinalizeResult,
    Generate,
    GenerateResult,
    Prefill,
    PrefillResult,
    Stage,
    StartResult,
    StartSession,
    StepUnit,
)
from parley.errors import BadInput, ContextFull

NAMES: Final = ("chat", "turns", "units")
"""The conversations of `Style.conversations`, in its order."""

FEW: Final = {"chat": {}, "turns": {}, "units": {"count": 4}}
"""Options for conversations that are run many times: units in which the model listens, speaks, ends
its turn and speaks again."""


class ModelContract:
    """Subclass it and override `make`."""

    style = Style()
    tolerance = 0.0
    """Absolute tolerance of samples."""
    lives = times(30, 100)
    """Number of conversations of a row in the test for growth."""
    cancel_steps = 8
    """Maximum number of steps after a cancel."""

    @classmethod
    def make(cls) -> Model:
        raise NotImplementedError("a contract test needs a model")

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Iterator[Model]:
        model = cls.make()
        yield model
        model.unload()

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, model: Model) -> Callable[..., list[Outcome]]:
        """Runs a conversation of the style (by name and seed) alone on a row, once, and closes all
        rows. A separate test checks that every run equals the first."""

        @functools.cache
        def play(name: str, **options: int) -> list[Outcome]:
            with closing(model):
                return Cast(model).play(0, getattr(cls.style, name)(**options))

        return play

    @pytest.fixture
    def cast(self, model: Model) -> Iterator[Cast]:
        with closing(model):
            yield Cast(model)

    def sabotage(self, model: Model, row: int) -> contextlib.AbstractContextManager[None]:
        """Make steps that contain `row` fail deep inside the model, with an error that contains
        `sabotage`. Models that do not support it skip the test."""
        pytest.skip("this model has no place to make a step fail")

    def conversation(self, name: str, **options):
        return getattr(self.style, name)(**options)

    # Shape of results.

    def test_the_spec_is_sane(self, model):
        spec = model.spec

        assert model.rows >= 3
        assert spec.name
        assert 0 < spec.prefill_piece_tokens <= 1024
        assert spec.can_speak or not self.style.speaks

    @pytest.mark.parametrize("name", ["chat", "turns", "units"])
    def test_results_fit_the_work_and_lengths_add_up(self, model, cast, name):
        length = 0

        for outcome in cast.play(0, self.conversation(name)):
            match outcome.work, outcome.result:
                case StartSession(), StartResult(seed):
                    assert seed == outcome.work.seed
                case Prefill(), PrefillResult(added, context_tokens):
                    assert context_tokens == length + added
                    length = context_tokens
                case ((Generate() | StepUnit()), GenerateResult()):
                    assert outcome.result.context_tokens >= length
                    length = outcome.result.context_tokens
                case Finalize(), FinalizeResult(context_tokens):
                    assert context_tokens >= length
                    length = context_tokens
                case other:
                    pytest.fail(f"unexpected {other}")
        assert model.context_tokens(0) == length

    @pytest.mark.parametrize("name", ["chat", "turns", "units"])
    def test_pieces_join_to_the_result(self, alone, name):
        for outcome in alone(name):
            if not isinstance(outcome.result, GenerateResult):
                assert outcome.pieces == []
                continue
            if outcome.result.ending is not Ending.LISTEN:
                assert outcome.text == outcome.result.text
            for piece in outcome.pieces:
                if piece.pcm is not None:
                    assert piece.pcm.rate_hz == 24_000
                    assert np.isfinite(piece.pcm.samples).all()
                    assert np.abs(piece.pcm.samples).max(initial=0) <= 1.0

    def test_a_silent_conversation_has_no_sound(self, cast):
        silent = Style(False, self.style.max_new_tokens, self.style.is_greedy)

        for works in silent.conversations():
            for outcome in cast.play(0, works):
                assert len(outcome.samples) == 0

    def test_a_reply_without_sound_in_a_conversation_with_a_voice(self, cast):
        works = self.style.chat()[:-1]
        works.append(Generate(max_new_tokens=5, speak=False))

        assert len(cast.play(0, works)[-1].samples) == 0

    def shown(self, text: str) -> str:
        """A text after the model's tokenizer has encoded and decoded it."""
        return text

    def test_given_words_are_said_as_they_stand(self, model, cast):
        if not model.spec.reads_aloud:
            pytest.skip("this model does not read aloud")
        works = self.style.chat()[:-1]
        words = "three plus four is seven."
        works.append(Generate(max_new_tokens=2, say=words))

        outcome = cast.play(0, works)[-1]

        assert outcome.result.text == outcome.text == self.shown(words)
        assert outcome.result.ending is Ending.DONE
        assert not model.spec.can_speak or len(outcome.samples) > 0

    # The equivalences.

    @pytest.mark.parametrize("name", ["chat", "turns"])
    def test_streaming_equals_one_shot(self, cast, name):
        streamed = cast.play(0, self.conversation(name, streaming=True))

        at_once = cast.play(0, self.conversation(name, streaming=False))

        assert_same(streamed, at_once, self.tolerance)
        for outcome in at_once:
            assert len(outcome.pieces) <= 1

    def test_a_row_in_company_equals_the_row_alone(self, alone, cast):
        together = cast.play_together(dict(enumerate(self.style.conversations())))

        for row, name in enumerate(NAMES):
            assert_same(alone(name), together[row], self.tolerance)

    def test_a_row_is_like_any_other_and_company_may_come_late(self, alone, cast):
        parts = self.style.conversations()

        together = cast.play_together(
            {(index + 1) % 3: works for index, works in enumerate(parts)}, delays={1: 5, 2: 9}
        )

        for index, name in enumerate(NAMES):
            assert_same(alone(name), together[(index + 1) % 3], self.tolerance)

    def test_three_alike_with_different_seeds_keep_apart(self, alone, cast):
        seeds = (1, 2, 3)

        together = cast.play_together(
            {row: self.style.units(seed=seed) for row, seed in enumerate(seeds)},
            delays={1: 1, 2: 2},
        )

        for row, seed in enumerate(seeds):
            assert_same(alone("units", seed=seed), together[row], self.tolerance)

    def test_the_same_seed_gives_the_same_conversation(self, alone, cast):
        for name, works in zip(NAMES, self.style.conversations(), strict=True):
            assert_same(alone(name), cast.play(0, works), self.tolerance)

    @pytest.mark.parametrize(
        ("name", "cut"),
        [("chat", 3), ("turns", 3), ("turns", 4), ("turns", 6), ("units", 5), ("units", 14)],
    )
    def test_a_conversation_done_again_continues_as_the_first(self, cast, name, cut):
        works = self.conversation(name)
        following = [
            *([unit(quiet(1.0)), StepUnit(), Finalize()] * 3 if name == "units" else []),
            *([turn("user", Text("And then?")), self.style.reply()] if name != "units" else []),
        ]
        first = cast.play(0, [*works, *following])

        again = [known(outcome) for outcome in first[:cut]]
        cast.play(1, [*again, Prefill(())])
        rest = cast.play(1, [*works[cut:], *following])

        assert_same(first[cut:], rest, self.tolerance)

    # Checkpoints.

    @pytest.mark.parametrize(
        ("name", "cut"), [("chat", 2), ("turns", 2), ("turns", 4), ("units", 8)]
    )
    def test_a_rolled_back_row_continues_as_if_nothing_had_happened(self, model, cast, name, cut):
        works = self.conversation(name)
        cast.play(0, works[:cut])
        checkpoint = model.checkpoint(0)
        before = model.context_tokens(0)
        first = cast.play(0, works[cut:])

        for _ in range(2):
            assert model.can_roll_back(checkpoint)
            model.roll_back(checkpoint)
            assert model.context_tokens(0) == checkpoint.context_tokens == before
            assert_same(first, cast.play(0, works[cut:]), self.tolerance)

    def test_what_was_said_in_between_leaves_no_trace(self, model, alone, cast):
        works = self.style.turns()
        expected = alone("turns")
        cast.play(0, works[:2])
        checkpoint = model.checkpoint(0)
        cast.play(0, [turn("user", Text("Something else entirely.")), self.style.reply()])
        later = model.checkpoint(0)

        model.roll_back(checkpoint)

        assert not model.can_roll_back(later)
        assert_same(expected[2:], cast.play(0, works[2:]), self.tolerance)

    def test_checkpoints_of_another_row_stay_good(self, model, cast):
        works = self.style.turns()
        cast.play_together({0: works[:3], 1: works[:3]})
        checkpoint = model.checkpoint(0)
        expected = cast.play(0, works[3:])

        cast.play(1, works[3:])
        model.close(1)
        model.roll_back(checkpoint)

        assert_same(expected, cast.play(0, works[3:]), self.tolerance)

    def test_a_checkpoint_does_not_outlive_its_conversation(self, model, cast):
        cast.play(0, self.style.turns()[:3])
        checkpoint = model.checkpoint(0)

        cast.play(0, self.style.turns()[:3])

        assert not model.can_roll_back(checkpoint)

    @pytest.mark.parametrize(("name", "cut"), [("chat", 1), ("turns", 2), ("units", 2)])
    def test_after_a_failure_at_any_stage_a_rollback_restores(self, model, cast, name, cut):
        works = self.conversation(name, **FEW[name])
        cast.play(0, works[:cut])
        checkpoint = model.checkpoint(0)
        counts = cast.stages_of(0, works[cut:])
        model.roll_back(checkpoint)
        expected = cast.play(0, works[cut:])

        for number, (stage, count) in enumerate(counts.items()):
            # At its first step, in the middle, or at its last one: one of them in turn, or all
            # three.
            places = sorted({0, count // 2, count - 1})
            for after in places if IS_LONG else [places[number % len(places)]]:
                model.roll_back(checkpoint)
                assert cast.play_and_drop(0, works[cut:], stage, after=after)
                model.roll_back(checkpoint)
                assert_same(expected, cast.play(0, works[cut:]), self.tolerance)

    # Failures.

    def test_opening_makes_any_row_usable_again(self, alone, cast):
        works = self.style.units(**FEW["units"])
        expected = {name: alone(name) for name in NAMES}

        for number, (stage, count) in enumerate(cast.stages_of(0, works).items()):
            assert cast.play_and_drop(0, works, stage, after=count - 1)
            # The three modes of conversation: one of them in turn, or all three.
            for name in NAMES if IS_LONG else [NAMES[number % len(NAMES)]]:
                assert_same(expected[name], cast.play(0, self.conversation(name)), self.tolerance)

    def test_a_dropped_job_harms_its_own_row_only(self, model, alone, cast):
        works = self.style.turns()
        expected = alone("turns")
        cast.play(1, works[:3])

        assert cast.play_and_drop(0, works, Stage.DECODE, after=2)
        model.close(0)

        assert_same(expected[3:], cast.play(1, works[3:]), self.tolerance)

    def test_a_step_that_raised_can_be_repeated_with_fewer_rows(self, model, cast):
        works = self.style.turns()
        expected = cast.play(0, works[:3])
        cast.play_together({0: works[:2], 1: works[:2]})
        jobs = [model.start(row, works[2]) for row in (0, 1)]
        lengths = [model.context_tokens(row) for row in (0, 1)]

        stage = jobs[0].stage
        assert stage is not None
        with self.sabotage(model, row=1), pytest.raises(Exception, match="sabotage"):
            model.step(stage, jobs)

        assert [model.context_tokens(row) for row in (0, 1)] == lengths
        while jobs[0].stage is not None:
            model.step(jobs[0].stage, [jobs[0]])
        assert jobs[0].result == expected[2].result

    @pytest.mark.parametrize("name", ["chat", "turns", "units"])
    def test_cancel_ends_early_and_leaves_a_context_one_can_continue(self, model, cast, name):
        works = self.conversation(name)
        place = max(
            index for index, work in enumerate(works) if isinstance(work, Generate | StepUnit)
        )
        cast.play(0, works[:place])
        job = model.start(0, works[place])
        for _ in range(2):
            if job.stage is not None:
                model.step(job.stage, [job])
        was_over = job.stage is None

        job.cancel()
        job.cancel()
        steps = 0
        while job.stage is not None:
            model.step(job.stage, [job])
            steps += 1

        assert steps <= self.cancel_steps
        decoded = job.result
        assert isinstance(decoded, GenerateResult)
        assert was_over or decoded.ending in (Ending.CANCELLED, Ending.LISTEN)
        assert decoded.context_tokens == model.context_tokens(0)
        cast.play(0, [Finalize()])
        if name == "units":
            after = [unit(quiet(1.0)), StepUnit(), Finalize()]
        else:
            after = [turn("user", Text("Go on."), is_closed=False), self.style.reply()]
        assert all(outcome.result is not None for outcome in cast.play(0, after))

    def test_a_job_cancelled_before_its_first_step_says_nothing(self, model, cast):
        works = self.style.turns()
        cast.play(0, works[:3])

        job = model.start(0, works[3])
        job.cancel()
        while job.stage is not None:
            model.step(job.stage, [job])

        assert job.result.ending is Ending.CANCELLED
        assert job.result.text == ""

    # Refusals.

    def test_an_unopened_row_refuses_work(self, model, cast):
        for work in (turn("user", Text("hi")), Generate(), StepUnit()):
            with pytest.raises(BadInput):
                model.start(0, work)

    def test_work_of_another_mode_is_refused_and_changes_nothing(self, model, cast):
        for works, wrong in ((self.style.turns(), StepUnit()), (self.style.units(), Generate())):
            cast.play(0, works[:3])
            before = model.context_tokens(0)
            with pytest.raises(BadInput):
                model.start(0, wrong)
            assert model.context_tokens(0) == before

    def test_what_does_not_fit_is_refused_and_changes_nothing(self, model, alone, cast):
        works = self.style.turns()
        expected = alone("turns")
        cast.play(0, works[:3])
        before = model.context_tokens(0)

        with pytest.raises(ContextFull) as caught:
            cast.play(0, [turn("user", Text("word " * (model.spec.context_limit_tokens + 100)))])

        assert caught.value.limit == model.spec.context_limit_tokens
        assert caught.value.needed is not None
        assert caught.value.needed > model.spec.context_limit_tokens
        assert model.context_tokens(0) == before
        assert_same(expected[3:], cast.play(0, works[3:]), self.tolerance)

    def test_settling_nothing_is_harmless(self, model, cast):
        for works in self.style.conversations():
            cast.play(0, works[:2])
            before = model.context_tokens(0)

            (outcome,) = cast.play(0, [Finalize()])

            assert outcome.result.context_tokens == before

    # Limits.

    def test_a_long_prefill_is_cut_into_pieces(self, model, cast):
        cast.play(0, [StartSession("chat", speak=False, seed=1)])
        job = model.start(0, turn("user", Text("one two three four five " * 250)))

        steps = 0
        while job.stage is not None:
            steps += job.stage is Stage.PREFILL
            model.step(job.stage, [job])

        assert steps >= math.floor(job.result.added_tokens / model.spec.prefill_piece_tokens)
        assert job.result.added_tokens > 2 * model.spec.prefill_piece_tokens

    @pytest.mark.parametrize("limit", [1, 7])
    def test_no_more_tokens_than_asked_for(self, cast, limit):
        works = [*self.style.turns()[:3], Generate(max_new_tokens=limit, speak=False)]

        decoded = cast.play(0, works)[-1].result

        # The reference generates tokens in tens and may round up. Source: sessions.md 2.4.
        assert decoded.text_tokens <= 10 * math.ceil(limit / 10)

    def test_forcing_to_listen_listens(self, cast):
        works = [
            StepUnit(force_listen=True) if isinstance(work, StepUnit) else work
            for work in self.style.units()
        ]

        for outcome in cast.play(0, works):
            if isinstance(outcome.result, GenerateResult):
                assert outcome.result.ending is Ending.LISTEN
                assert len(outcome.samples) == 0

    def test_what_was_heard_of_a_unit_is_said_again_without_sound_and_ends_the_turn(
        self, alone, cast
    ):
        works = self.style.units()
        outcomes = alone("units")
        spoke = next(
            index
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome.result, GenerateResult) and outcome.result.ending is Ending.SPOKE
        )
        again = works[:spoke]
        again += [
            StepUnit(say="one two"),
            Finalize(),
            unit(quiet(1.0)),
            StepUnit(force_listen=True),
        ]

        said, settled, _, listened = cast.play(1, again)[spoke:]

        assert said.result.ending is Ending.SPOKE
        assert said.result.end_of_turn
        assert said.result.text.strip() == self.shown("one two").strip()
        assert len(said.samples) == 0
        assert settled.result.context_tokens >= said.result.context_tokens
        assert listened.result.ending is Ending.LISTEN

    def test_the_first_units_listen_as_configured(self, cast):
        works = self.style.units()
        opening = works[0]
        assert isinstance(opening, StartSession)
        options = type(opening.duplex)(force_listen_count=4)
        works[0] = StartSession(
            "duplex", opening.voice, opening.speak, opening.seed, duplex=options
        )

        endings = [
            outcome.result.ending
            for outcome in cast.play(0, works)
            if isinstance(outcome.result, GenerateResult)
        ]

        assert endings[:4] == [Ending.LISTEN] * 4

    def test_sound_in_the_middle_of_a_turn_comes_in_whole_seconds(self, cast):
        is_running = False
        for outcome in cast.play(0, self.style.units(count=8)):
            if not isinstance(outcome.result, GenerateResult):
                continue
            spoke = outcome.result.ending is Ending.SPOKE
            if is_running and spoke and not outcome.result.end_of_turn and len(outcome.samples):
                assert len(outcome.samples) == 24_000
            is_running = spoke and not outcome.result.end_of_turn

    # Memory.

    def test_close_gives_back_what_a_conversation_took(self, model, cast):
        cast.play(0, self.style.units())
        model.close(0)
        before = model.memory().used_bytes

        for works in self.style.conversations():
            cast.play(0, works)
            model.close(0)
            model.close(0)

            assert model.memory().used_bytes == before
            assert model.context_tokens(0) == 0

    def test_many_lives_take_no_more_than_one(self, model, cast):
        works = [
            StartSession("half_duplex", speak=False, seed=5),
            turn("user", Audio(voice(0.5), "turn"), is_closed=False),
            Generate(max_new_tokens=2, speak=False),
        ]
        cast.play(0, works)
        peak = model.memory().used_bytes

        for _ in range(self.lives):
            cast.play(0, works)
            assert model.memory().used_bytes <= peak

    def test_a_unit_needs_its_marker_only_once(self, cast):
        """Text may be split anywhere: neighbouring texts are one text."""
        whole = [StartSession("chat", seed=1, speak=False), turn("user", Text("Good morning"))]
        cut = [
            StartSession("chat", seed=1, speak=False),
            Prefill(
                (
                    Marker(Place.TURN_START, "user"),
                    Text("Good mor"),
                    Text("ning"),
                    Marker(Place.TURN_END, "user"),
                )
            ),
        ]

        assert_same(cast.play(0, whole), cast.play(0, cut), self.tolerance)
