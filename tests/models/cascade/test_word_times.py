"""When words were said, against sounds whose words have known times."""

import difflib
from itertools import pairwise
from pathlib import Path

import numpy as np
import parley_pocket_data
import pytest
import torch

from parley.media.pcm import Pcm
from parley.media.resample import resample
from parley.models.cascade import store
from parley.models.cascade.recognition import Recogniser
from parley.models.cascade.transcript import FOREIGN_SPEECH
from parley.models.cascade.voice import acoustic
from parley.models.cascade.voice.acoustic import EDGE, FRAME_SAMPLES, ids_of
from parley.models.cascade.voice.speaker import FEMALE, MALE, OwnSpeaker
from parley.models.cascade.word_times import timed

FOLDER = Path(parley_pocket_data.__file__).parent
SENTENCES = (
    "please open the window before you leave the house",
    "my sister bought seven green apples at the market yesterday",
    "we walked along the river for an hour and talked about music",
    "the children played outside until their mother called them home for dinner",
)


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return store.load_recogniser(FOLDER)


@pytest.fixture(scope="module")
def speaker() -> OwnSpeaker:
    return OwnSpeaker(FOLDER)


def lengths(speaker: OwnSpeaker, ids: list[int], voice: int) -> np.ndarray:
    """Frames of each sound, as `VoiceNetwork.speak` makes them."""
    kept: list[np.ndarray] = []
    made = acoustic.spread_out

    def spread_out(x: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept.append(frames.numpy())
        return made(x, frames)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acoustic, "spread_out", spread_out)
        speaker.network.speak(ids, voice)
    return kept[0]


def said(speaker: OwnSpeaker, sentence: str, voice: int) -> tuple[np.ndarray, list[tuple]]:
    """A sentence as 16 kHz samples, between two silences of 0.4 s; and its words with their
    times."""
    words = sentence.split()
    reading = speaker.lexicon.read(words)
    ids = ids_of(reading)
    frames = lengths(speaker, ids, voice)
    ends = np.cumsum(frames) * FRAME_SAMPLES / 24_000 + 0.4
    space = ids_of(" ")[1]
    bounds = [place for place, one in enumerate(ids) if one in (space, EDGE)]
    times = [
        (word, float(ends[before]), float(ends[after - 1]))
        for word, (before, after) in zip(words, pairwise(bounds), strict=True)
    ]
    wave = speaker._sound(speaker.network.speak(ids, voice), 1.0)
    quiet = np.zeros(9_600, np.float32)
    sound = resample(Pcm(np.concatenate((quiet, wave, quiet)), 24_000), 16_000)
    return sound.samples, times


def test_words_are_where_they_were_said(recogniser, speaker):
    starts, ends, lost = list[float](), list[float](), 0
    for sentence in SENTENCES:
        for voice in (FEMALE, MALE):
            samples, truth = said(speaker, sentence, voice)
            work = recogniser.begin(samples)
            while not work.step():
                continue
            assert work.heard is not None
            found = work.word_times(work.heard.text)
            assert " ".join(each.word for each in found) == work.heard.text
            heard = [each.word.lower().strip(".,?!") for each in found]
            match = difflib.SequenceMatcher(None, heard, [word for word, *_ in truth])
            lost += len(truth)
            for mine, theirs, size in match.get_matching_blocks():
                lost -= size
                for n in range(size):
                    starts.append(abs(found[mine + n].start - truth[theirs + n][1]))
                    ends.append(abs(found[mine + n].end - truth[theirs + n][2]))

    assert lost < 10
    assert np.median(starts) < 0.06
    assert np.percentile(starts, 90) < 0.2
    assert np.median(ends) < 0.1


def test_words_that_were_misheard_have_times_as_what_they_were_taken_for(recogniser, speaker):
    samples, truth = said(speaker, "what is the opposite of gold", FEMALE)
    work = recogniser.begin(samples)
    while not work.step():
        continue

    found = work.word_times("What is the opposite of cold?")

    assert [each.word for each in found] == ["What", "is", "the", "opposite", "of", "cold?"]
    assert abs(found[-1].start - truth[-1][1]) < 0.2
    assert work.word_times(FOREIGN_SPEECH) == ()


def test_of_two_texts_the_one_that_was_said_is_likelier_whatever_else_is_asked(recogniser, speaker):
    samples, _ = said(speaker, "what is the opposite of gold", FEMALE)
    work = recogniser.begin(samples)
    while not work.step():
        continue

    said_, other = work.likelihoods(["What is the opposite of gold", "What is the opposite of hot"])
    alone = work.likelihoods(["What is the opposite of gold"])
    longer = work.likelihoods(["What is the opposite of gold", "How many legs does a spider have"])

    assert 0 > said_ > other + 3
    assert alone == pytest.approx([said_], abs=0.5)
    assert longer[0] == pytest.approx(said_, abs=0.5)


def test_what_is_no_word_of_the_text_has_no_times():
    pieces = [" Hello", " [", "music", "]", " An", "na", "."]
    starts = np.arange(8.0)

    assert [(w.word, w.start, w.end) for w in timed(pieces, starts, "Hello Anna.")] == [
        ("Hello", 0.0, 1.0),
        ("Anna.", 4.0, 6.0),
    ]


def test_a_text_that_was_not_written_has_no_times():
    assert timed([" Bonjour"], np.arange(2.0), "(foreign language)") == ()
