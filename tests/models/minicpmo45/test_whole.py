"""Replies in one piece: all of the text, then all of it spoken."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.conversations import Cast, turn
from tests.support.small_minicpmo import IDS, small_model
from tests.support.small_talk import Script

from parley.engine.model import Job
from parley.engine.segments import Text
from parley.engine.work import Ending, Generate, GenerateResult, Stage, StartSession
from parley.models.minicpmo45.conversation.replies import WholeReplyJob
from parley.models.minicpmo45.conversation.speech import OfflineStream, SpeechOutput
from parley.models.minicpmo45.model import MiniCPMO45
from parley.models.minicpmo45.token2wav.vocoder import OVERLAP_SAMPLES
from parley.models.minicpmo45.token2wav.voice_pack import VoicePack
from parley.models.minicpmo45.tts.turns import UTTERANCE_MINIMUM

QUESTION = turn("user", Text("What is it?"))


@pytest.fixture(autouse=True)
def _live_again(model: MiniCPMO45) -> Iterator[None]:
    yield
    output_of(model).offline = None


def reply(model: MiniCPMO45, said: Sequence[int], **options: Any) -> tuple[Any, Script]:
    """What becomes of a reply that says this."""
    script = Script(*said)
    cast = Cast(model)
    model.chooser = script
    work = Generate(is_whole=True, **options)
    outcomes = cast.play(0, [StartSession("chat", seed=3, speak=work.speak), QUESTION, work])
    return outcomes[-1], script


def test_the_end_of_speech_does_not_end_the_text_and_is_not_shown(model):
    outcome, _ = reply(model, [97, 98, IDS.tts_eos, IDS.im_end], speak=False)

    assert outcome.result.ending is Ending.DONE
    assert outcome.result.text == model.tokenizer.decode([97, 98])
    assert outcome.result.text_tokens == 2


def test_only_the_tag_itself_is_left_out(model):
    """Wherever it stands, and not letters that occur in it."""
    said = [IDS.tts_eos, 97, 98]

    outcome, _ = reply(model, [*said, IDS.im_end], speak=False)

    assert outcome.result.text == model.tokenizer.decode([97, 98])


def test_everything_comes_in_one_piece(model):
    outcome, _ = reply(model, [97, 98, 99, IDS.tts_eos, IDS.im_end])

    (piece,) = outcome.pieces
    assert piece.text == outcome.result.text
    assert piece.pcm is not None
    # Speech cannot end before its minimum; no silent tokens are spoken in front of it, only the
    # vocoder's delay.
    assert outcome.result.speech_tokens >= UTTERANCE_MINIMUM
    assert len(piece.pcm) == 960 * outcome.result.speech_tokens + OVERLAP_SAMPLES


def test_what_stands_between_the_speech_tags_is_spoken_with_its_own_states(model, monkeypatch):
    conditions = []
    decoder = model.speech_output.decoder
    condition = decoder.condition

    def noted(ids, hidden, **options):
        conditions.append((list(ids), hidden))
        return condition(ids, hidden, **options)

    monkeypatch.setattr(decoder, "condition", noted)
    states: dict[int, torch.Tensor] = {}
    decode = model.steps.decode

    def fed(ids, spans):
        hidden, logits = decode(ids, spans)
        states[ids[0]] = hidden[0].clone()
        return hidden, logits

    monkeypatch.setattr(model.steps, "decode", fed)

    reply(model, [97, IDS.tts_bos, 98, 99, IDS.tts_eos, 100, IDS.im_end])

    ((ids, hidden),) = conditions
    assert ids == [98, 99]
    assert torch.equal(hidden, torch.stack([states[98], states[99]]))


def test_the_limit_is_not_rounded_up(model):
    outcome, _ = reply(model, range(97, 120), speak=False, max_new_tokens=13)

    assert outcome.result.ending is Ending.LIMIT
    assert outcome.result.text_tokens == 13


def test_the_penalty_sees_the_whole_reply_and_the_length_penalty_acts_on_its_ends(model):
    _, script = reply(
        model, [*range(97, 122), IDS.im_end], speak=False, max_new_tokens=40, length_penalty=1.3
    )

    assert list(script.asks[-1].history) == list(range(97, 122))
    assert script.asks[0].rule.enders == IDS.chat_terminators
    assert script.asks[0].rule.length_penalty == 1.3
    assert script.asks[0].rule.forbids is None


def test_an_empty_reply_is_empty(model):
    outcome, _ = reply(model, [IDS.im_end])

    assert (outcome.result.text, outcome.result.speech_tokens) == ("", 0)
    assert len(outcome.samples) == 0


def test_a_cancelled_reply_leaves_a_usable_conversation(model):
    cast = Cast(model)
    cast.play(0, [StartSession("chat", seed=3), QUESTION])
    job = model.start(0, Generate(is_whole=True, max_new_tokens=30))
    assert isinstance(job, WholeReplyJob)
    for _ in range(4):
        model.step(job.stage, [job])

    job.cancel()

    assert job.stage is None
    assert isinstance(job.result, GenerateResult)
    assert job.result.ending is Ending.CANCELLED
    again = cast.play(0, [QUESTION, Generate(is_whole=True, max_new_tokens=3, speak=False)])
    assert isinstance(again[-1].result, GenerateResult)
    assert again[-1].result.text_tokens <= 3


def with_offline(model: MiniCPMO45, steps: int) -> OfflineStream:
    """Answers in one piece are spoken with more Euler steps than the three of a tiny vocoder."""
    output = output_of(model)
    output.offline = OfflineStream(output.token2wav.offline(steps), output._threads)
    return output.offline


def output_of(model: MiniCPMO45) -> SpeechOutput:
    assert model.speech_output is not None
    return model.speech_output


def run(model: MiniCPMO45, jobs: Sequence[Job], until: Stage | None = None) -> None:
    """Take jobs in step to a stage, or to the end of the first one."""
    while (stage := jobs[0].stage) is not until and stage is not None:
        model.step(stage, jobs)


def sound_of(job: Job) -> Any:
    (piece,) = job.take_pieces()
    assert piece.pcm is not None
    return piece.pcm.samples


def test_an_answer_in_one_piece_is_spoken_with_the_steps_of_answers_in_one_piece(model):
    """Exactly as a vocoder of that number of steps speaks it, and not as a live one does."""
    said = [97, 98, 99, IDS.im_end]
    live, _ = reply(model, said)
    same_steps = with_offline(model, 3)
    again, _ = reply(model, said)
    with_offline(model, 6)
    offline, _ = reply(model, said)

    sounds = [one.pieces[0].pcm.samples for one in (live, again, offline)]
    np.testing.assert_allclose(sounds[1], sounds[0], atol=1e-4)
    assert len(sounds[2]) == len(sounds[0])
    assert not np.allclose(sounds[2], sounds[0], atol=1e-3)
    assert same_steps.holder is None


def test_a_streamed_answer_is_spoken_with_the_live_steps(model):
    said = [97, 98, 99, IDS.tts_eos]
    sounds = []
    for steps in (None, 6):
        if steps:
            with_offline(model, steps)
        model.chooser = Script(*said)
        cast = Cast(model)
        outcomes = cast.play(0, [StartSession("chat", seed=3), QUESTION, Generate()])
        pieces = [piece.pcm.samples for piece in outcomes[-1].pieces if piece.pcm is not None]
        sounds.append(np.concatenate(pieces))

    assert np.array_equal(sounds[0], sounds[1])


def test_a_cancelled_answer_leaves_the_offline_stream_to_others(model):
    stream = with_offline(model, 6)
    cast = Cast(model)
    model.chooser = Script(97, 98, 99, IDS.im_end)
    cast.play(0, [StartSession("chat", seed=3), QUESTION])
    job = model.start(0, Generate(is_whole=True))
    run(model, [job], Stage.VOCODE)
    model.step(Stage.VOCODE, [job])
    assert stream.holder == 0

    job.cancel()

    assert stream.holder is None


def test_answers_in_one_piece_take_turns_and_do_not_wait_for_one_that_failed():
    model = small_model(slots=2)
    try:
        stream = with_offline(model, 6)
        cast = Cast(model)
        jobs: list[Job] = []
        for row in range(2):
            cast.play(row, [StartSession("chat", seed=3), QUESTION])
            model.chooser = Script(97, 98, 99, IDS.im_end)
            jobs.append(model.start(row, Generate(is_whole=True)))
            run(model, jobs[row:], Stage.VOCODE)
        run(model, jobs)
        assert stream.holder is None
        first = sound_of(jobs[0])

        # Another row holds the stream, and is not among those that speak.
        stream.take(0, output_of(model).token2wav.voices[0].pack)
        run(model, jobs[1:])

        assert len(sound_of(jobs[1])) == len(first)
    finally:
        model.unload()


def test_a_voice_that_cannot_be_primed_fails_one_answer(model, monkeypatch):
    stream = with_offline(model, 6)

    def full(slot: int, pack: VoicePack) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(stream._token2wav, "prime_slot", full)
        with pytest.raises(RuntimeError, match="out of memory"):
            reply(model, [97, 98, 99, IDS.im_end])
    assert stream.holder is None

    outcome, _ = reply(model, [97, 98, 99, IDS.im_end])
    assert outcome.pieces[0].pcm is not None
