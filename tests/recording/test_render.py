"""The merged replay: true timing in the plan, and the same in the files that are made of it."""

import json
from typing import Any

import av
import msgspec
import numpy as np
import pytest
import soundfile
from tests.support import units
from tests.support.recordings import JPEG, a_unit, begun, entry, head, recorded, started, tone

from parley.dialects.events import (
    AnswerDone,
    AudioInput,
    ChatRequested,
    HalfDuplexSetup,
    InputCommitted,
    OutputDelta,
    SessionEnded,
    SessionInterrupted,
    TurnCompleted,
    TurnTranscribed,
    UnitDone,
)
from parley.media.pcm import Pcm
from parley.protocol.content import Message
from parley.protocol.kinds import Kind
from parley.protocol.values import TextPart
from parley.recording import store
from parley.recording.finish import fold, recover
from parley.recording.journal_writer import JournalWriter
from parley.recording.layout import RecordingFolders
from parley.recording.lines import JournalEntries, KeptSound, RecordedEntry
from parley.recording.placing import PlacedPiece, PlacedText, Plan, place
from parley.recording.render import _track, caption, make, srt, vtt, wrap
from parley.recording.render_queue import RenderQueue, pending
from parley.recording.speech_times import SpeechTimes
from parley.session_log.entries import Truncated

MADE = ("merged_replay.wav", "merged_replay.srt", "merged_replay.vtt", "merged_replay.mp4")


def unit(
    index: int,
    receive_s: float,
    *,
    said_ms: float = 0,
    at_s: float | None = None,
    written: str = "",
    frames: tuple[bytes, ...] = (),
    **result,
) -> RecordedEntry:
    at_ms = 1000 * (receive_s + 0.2 if at_s is None else at_s)
    is_listen = not (said_ms or result)
    done = UnitDone(
        index,
        units.result(is_listen=is_listen, **result),
        wall_ms=at_ms - 1000 * receive_s,
        unit=AudioInput(Pcm.empty(16_000), frames, text=written),
    )
    sounds = [heard(f"user_audio/{index}.wav", 16_000)]
    if said_ms:
        sounds.append(KeptSound(f"ai_audio/{index}.wav", said_ms))
    return entry(at_ms, done, *sounds)


def heard(path: str, samples: int) -> KeptSound:
    return KeptSound(path, samples=(0, samples, 16_000))


def turn(at_ms: float, spoken_ago_ms: float = 0.0) -> list[RecordedEntry]:
    asked = InputCommitted("i1", Pcm.empty(16_000), spoken_ago_ms=spoken_ago_ms)
    return [
        entry(at_ms, asked, heard("user_audio/000.wav", 32_000)),
        entry(at_ms, started("i1")),
    ]


def said(at_ms: float, text: str, sound_ms: float) -> RecordedEntry:
    return entry(at_ms, OutputDelta(0, text), KeptSound("ai_audio/a", sound_ms))


def placed(lines: list[RecordedEntry], **more: Any) -> Plan:
    return place(JournalEntries(head("x", **more), lines))


def starts(pieces) -> list[float]:
    return [round(piece.start_s, 3) for piece in pieces]


@pytest.mark.parametrize("received_s", [(1.0, 2.12, 2.95, 4.1), (1.0, 4.0, 4.01, 4.02)])
def test_units_lie_back_to_back_whatever_the_network_did_to_them(received_s):
    plan = placed([unit(index, each_s) for index, each_s in enumerate(received_s)])

    assert np.allclose(starts(plan.user), [0.0, 1.0, 2.0, 3.0], atol=0.03)
    # Players would cut the last word.
    assert plan.length_s == 4.0 + 1.0


def test_a_pause_is_heard_as_one():
    plan = placed([unit(0, 1.0), unit(1, 12.0, frames=(b"a", b"b")), unit(2, 13.0)])

    assert starts(plan.user) == [0.0, 11.0, 12.0]
    assert plan.frames == [(11.0, "a"), (11.5, "b")]


def test_the_answer_is_heard_when_it_came_and_after_what_came_before():
    plan = placed(
        [unit(0, 1.0, said_ms=1400, text="a"), unit(1, 2.0, said_ms=600), unit(2, 6, said_ms=500)]
    )

    assert starts(plan.assistant) == [1.2, 2.6, 6.2]


def test_what_was_interrupted_was_not_heard():
    lines = [
        unit(0, 1.0, said_ms=3000, text="a long"),
        unit(1, 2.0, said_ms=1000, text=" story"),
        entry(2500.0, SessionInterrupted()),
        unit(2, 3.0),
        unit(3, 4.0, said_ms=500, text="sorry"),
    ]
    plan = placed(lines)

    assert [(round(p.start_s, 3), round(p.length_s, 3)) for p in plan.assistant] == [
        (1.2, 1.3),
        (4.2, 0.5),
    ]
    shown = [caption(plan.said, at_s, at_s + 1.0) for at_s in (1.2, 3.0, 4.3)]
    assert shown == ["a", "a", "sorry"]


def test_captions_grow_within_a_turn_and_stay_a_while_after_it():
    lines = [
        unit(0, 1.0, said_ms=1000, text="One"),
        unit(1, 2.0, said_ms=1000, text=" two", end_of_turn=True),
        unit(2, 9.0, said_ms=1000, text="Three"),
    ]
    plan = placed(lines)

    times = (1.2, 2.2, 4.6, 4.8, 9.2, 11.6)
    shown = [caption(plan.said, at_s, at_s + 1.0) for at_s in times]
    assert shown == ["One", "One two", "One two", "", "Three", "Three"]


def test_half_duplex_turns_lie_where_they_were_spoken():
    lines = [*turn(5000.0, 770.0), said(5300.0, "Hi", 800), said(5400.0, "", 900), *turn(6000.0)]
    plan = placed(lines, app_type=Kind.HALF_DUPLEX)

    # Two seconds each; the second one was spoken after the first.
    assert starts(plan.user) == [2.23, 4.23]
    assert [each.published().input.start_ms for each in plan.turns] == [2230.0, 4230.0]
    assert starts(plan.assistant) == [5.3, 6.1]
    assert [piece.offset_s for piece in plan.assistant] == [0.0, 0.8]


@pytest.mark.parametrize(
    "end",
    [
        entry(5900.0, Truncated("a1", 600, "Hi")),
        entry(5900.0, SessionEnded("stopped")),
        entry(5900.0, SessionEnded("disconnected")),
    ],
)
def test_an_answer_that_was_made_before_the_user_broke_in_or_left_is_cut(end):
    lines = [*turn(5000.0), said(5300.0, "Hi", 800), said(5310.0, " you", 900)]
    lines += [entry(5320.0, TurnCompleted(0, "Hi you", "a1")), end]

    plan = placed(lines, app_type=Kind.HALF_DUPLEX)

    assert [(p.start_s, round(p.length_s, 3)) for p in plan.assistant] == [(5.3, 0.6)]
    assert [(one.text, round(one.end_s, 3), one.is_interrupted) for one in plan.said] == [
        ("Hi", 5.9, True)
    ]
    assert plan.turns[0].published().output.text == "Hi"


def test_an_answer_that_came_as_a_whole_has_its_words():
    asked = ChatRequested(
        (Message("user", (TextPart("Why?"),)), Message("assistant", (TextPart("It is"),)))
    )
    whole = entry(900.0, AnswerDone("A test.", 5, 3), KeptSound("ai_audio/a", 800))
    plan = placed([entry(0.0, asked), whole], app_type=Kind.CHAT)

    assert [(one.text, one.start_s, round(one.end_s, 3)) for one in plan.said] == [
        ("A test.", 0.9, 1.7)
    ]
    assert plan.turns[0].published().input.text == "Why?"


def test_subtitles_carry_no_commands():
    evil = "<b>x</b> {\\an8}\n\n2\n00:00 --> 00:01\x1b[31m"
    text = srt([PlacedText("assistant", evil, 0.0, 1.25)])

    assert text.splitlines()[1] == "00:00:00,000 --> 00:00:01,250"
    assert len(text.splitlines()) == 3
    assert not set(text.splitlines()[2]) & set("<>{}\\\x1b")


def test_subtitles_say_who_said_what_where_both_sides_have_words():
    said = [PlacedText("user", "What & when?", 0.0, 1.0), PlacedText("assistant", "Now.", 1.5, 2.8)]

    assert [line for line in srt(said).splitlines() if ":" in line and "-->" not in line] == [
        "User: What & when?",
        "Assistant: Now.",
    ]
    assert vtt(said).split("\n\n")[0] == "WEBVTT"
    assert "<v User>What &amp; when?" in vtt(said)
    assert "00:00:01.500 --> 00:00:02.800\n<v Assistant>Now." in vtt(said)


def test_what_was_heard_and_written_is_captioned_where_it_was_said():
    words = entry(5200.0, TurnTranscribed(0, "What is the time?"))
    talk = [*turn(5000.0), words, said(5300.0, "Hi", 800)]
    spoken = placed(talk, app_type=Kind.HALF_DUPLEX)
    hello = entry(2100.0, TurnTranscribed(1, "Hello"))
    call = [unit(0, 1.0, written="Look"), unit(1, 2.0), hello, unit(2, 3.0)]
    shown = placed(call)

    assert [(one.text, one.start_s, one.end_s) for one in spoken.said if one.who == "user"] == [
        ("What is the time?", 3.0, 5.0)
    ]
    assert [(one.text, one.end_s) for one in shown.said] == [("Look", 1.5), ("Hello", 2.1)]


def test_a_turn_that_is_only_transcribed_ends_with_its_words():
    setup, words = HalfDuplexSetup(transcribes=True), TurnTranscribed(0, "Hello", "i1")
    (only,) = placed(
        [entry(0.0, setup), turn(5000.0)[0], entry(5200.0, words)], app_type=Kind.HALF_DUPLEX
    ).turns

    assert only.published().timing.elapsed_ms == 200
    assert only.published().output.incomplete is msgspec.UNSET


def test_a_call_is_called_after_the_first_words_of_the_user():
    words = entry(1500.0, TurnTranscribed(1, '"Count  to four."' + " five" * 20))
    call = [unit(0, 1.0), words, entry(2000.0, TurnTranscribed(2, "Later.")), unit(2, 3.0)]

    meta, _ = fold(JournalEntries(head("x"), call))

    assert meta.title == ('Count to four."' + " five" * 20)[:80]
    assert fold(JournalEntries(head("x"), [unit(0, 1.0)]))[0].title == ""


def test_a_long_answer_is_shown_in_parts_each_for_its_share():
    text = "one two three four five six seven eight nine ten " * 4

    times = [
        line
        for line in srt([PlacedText("assistant", text, 10.0, 20.0)]).splitlines()
        if "-->" in line
    ]

    assert len(times) == 3
    assert times[0].startswith("00:00:10,000 -->")
    assert times[-1].endswith("--> 00:00:20,000")


def test_what_both_said_has_the_times_of_their_speech():
    words = entry(3100.0, TurnTranscribed(2, "Count to four"), spoken_ago_ms=(1750, 600))
    question = [unit(0, 1.0), unit(1, 2.0), unit(2, 3.0), words]
    answer = [
        unit(3, 4.0, said_ms=900, text="1, 2,"),
        unit(4, 5.0, said_ms=600, text=" 3, 4.", end_of_turn=True),
        unit(5, 6.0, said_ms=900, text="And more"),
        entry(6500.0, SessionInterrupted()),
    ]

    both = placed([*question, *answer]).said

    assert [(one.who, one.text, one.start_s, one.end_s, one.is_interrupted) for one in both] == [
        ("user", "Count to four", 1.25, 2.4, False),
        ("assistant", "1, 2, 3, 4.", 4.2, 5.8, False),
        ("assistant", "And", 6.2, 6.5, True),
    ]


def test_when_a_person_spoke_is_found_in_the_sound_over_the_noise_of_the_room():
    rng = np.random.default_rng(1)
    sound = rng.normal(0, 0.004, 6 * 16_000).astype(np.float32)
    t = np.arange(16_000 * 2) / 16_000
    sound[24_000:56_000] += (0.2 * np.sin(2 * np.pi * 180 * t)).astype(np.float32)
    sound[4_000:4_400] += 0.3
    times = SpeechTimes()
    for second in range(6):
        times.feed(Pcm(sound[second * 16_000 : (second + 1) * 16_000], 16_000))

    found = times.take()

    assert found is not None
    assert found == pytest.approx((4.5, 2.5), abs=0.05)
    assert times.take() is None


def test_lines_break_between_words_and_between_chinese_characters():
    assert wrap("one two three", len, 8) == ["one two", "three"]
    assert wrap("你好世界真大", len, 4) == ["你好世界", "真大"]


def test_sound_film_and_subtitles_have_the_length_and_timing_of_the_session(tmp_path):
    folder = recorded(tmp_path, "one", units=4)

    made = make(folder)

    assert [path.name for path in made] == list(MADE)
    sound, rate_hz = soundfile.read(folder.replay_wav)
    assert (rate_hz, sound.shape[1]) == (24_000, 2)
    loud = np.abs(sound) > 0.02
    assert abs(loud[:, 0].argmax() / rate_hz - 0.0) < 0.01
    assert abs(loud[:, 1].argmax() / rate_hz - 1.1) < 0.01
    assert abs((len(sound) - loud[::-1, 1].argmax()) / rate_hz - 5.0) < 0.01
    with av.open(str(folder.replay_mp4)) as film:
        video, audio = film.streams.video[0], film.streams.audio[0]
        assert (video.width, video.height) == (1280, 720)
        pictures = [frame.to_ndarray(format="rgb24") for frame in film.decode(video)]
        assert abs(float(audio.duration * audio.time_base) - len(sound) / rate_hz) < 0.2
    assert 80 < pictures[0][360, 640].mean() < 100
    assert any(picture[620:700].max() > 200 for picture in pictures)
    assert folder.web_subtitles.read_text().startswith("WEBVTT\n")
    recording = store.read_recording(folder)
    assert recording is not None
    assert recording.merged_replay == "merged_replay.wav"
    assert recording.merged_replay_video == "merged_replay.mp4"


def test_resampling_the_person_brings_no_aliases_and_keeps_the_level(tmp_path):
    folder = recorded(tmp_path, "one", units=2)
    make(folder)

    left = soundfile.read(folder.replay_wav)[0][2400:45_600, 0]
    spectrum = np.abs(np.fft.rfft(left * np.hanning(len(left))))
    frequencies = np.fft.rfftfreq(len(left), 1 / 24_000)
    assert abs(np.abs(left).max() - 0.1) < 0.005
    assert spectrum[frequencies > 8100].max() < spectrum.max() * 1e-3


@pytest.mark.slow
def test_a_replay_that_cannot_be_made_says_so(tmp_path):
    folder = recorded(tmp_path, "one")
    folder.journal.write_text("")
    maker = RenderQueue()

    maker.put(folder)
    maker._waiting.join()
    maker.close()

    assert json.loads(folder.replay_state.read_bytes())["state"] == "failed"


@pytest.mark.slow
def test_replays_that_a_restart_cut_off_are_made_aside_after_it(tmp_path):
    folder = recorded(tmp_path, "one")
    recorded(tmp_path, "not_asked")
    stopped = RenderQueue()
    stopped.put(folder)
    stopped.close()
    left = pending(RecordingFolders(tmp_path))

    maker = RenderQueue()
    assert all(map(maker.put, left))
    maker._waiting.join()
    maker.close()

    assert [one.recording_id for one in left] == ["one"]
    state = json.loads(folder.replay_state.read_bytes())
    assert state == {"state": "done", "progress": 1.0, "files": list(MADE)}
    assert store.describe(folder)["replay"]["state"] == "done"
    assert not any(path.name.endswith(".partial") for path in folder.files())
    assert pending(RecordingFolders(tmp_path)) == []


def test_the_replay_of_a_crashed_session_plays(tmp_path):
    writer, folder = JournalWriter(), RecordingFolders(tmp_path).folder("crash")
    journal = begun(folder, writer)
    for index in range(2):
        journal.put(*a_unit(index))
    writer.close()
    journal.close()
    (torn,) = (folder.path / "ai_audio").glob("*_001.wav")
    torn.write_bytes(torn.read_bytes()[:30])

    recover(RecordingFolders(tmp_path))
    make(folder)

    assert soundfile.info(folder.replay_wav).duration > 2
    with av.open(str(folder.replay_mp4)) as film:
        assert sum(1 for _ in film.decode(film.streams.video[0])) > 2


def test_a_frame_that_is_a_bomb_is_left_out(tmp_path):
    folder = recorded(tmp_path, "one")
    bomb = bytearray(JPEG)
    start = bomb.find(b"\xff\xc0")
    bomb[start + 5 : start + 9] = b"\xff\xff\xff\xff"
    (folder.path / "user_frames/000.jpg").write_bytes(bytes(bomb))

    make(folder)

    with av.open(str(folder.replay_mp4)) as film:
        assert next(film.decode(film.streams.video[0])).width == 1280


def test_two_loud_sounds_together_do_not_wrap_around(tmp_path):
    folder, loud = recorded(tmp_path, "one"), tone(1.0, 16_000, 0.99)
    soundfile.write(folder.path / "user_audio/000.wav", loud.samples, 16_000)
    piece = PlacedPiece("user_audio/000.wav", 0.0, 1.0)

    mixed = _track(folder, [piece, piece], 16_000, 1.0)

    assert np.abs(mixed - 32_767 * np.clip(2 * loud.samples, -1, 1)).max() < 3
