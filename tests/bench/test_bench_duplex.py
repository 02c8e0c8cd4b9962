"""`parley bench duplex`: its measures, its loudspeaker, and a conversation with a real server."""

import asyncio
import dataclasses
import json
import math
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.support.long import IS_LONG, long_only
from tests.support.noises import spoken

from parley.cli.bench import duplex_people, duplex_talk
from parley.cli.bench.duplex import as_data, as_table, converse
from parley.cli.bench.duplex_material import Material, own
from parley.cli.bench.duplex_score import TalkOutcome, as_svg, percentile, rate, share
from parley.cli.bench.duplex_talk import SimulatedLoudspeaker, SimulatedMicrophone
from parley.cli.bench.server import server
from parley.cli.bench.talkers import DIALECTS
from parley.client.events import Interruption, Piece, Speaking
from parley.client.half_duplex import HalfDuplexClient
from parley.errors import SetupError
from parley.media.pcm import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Pcm
from parley.media.wav import encode_wav

TRIED = DIALECTS if IS_LONG else ("half_duplex", "duplex")


def tone(seconds: float, rate_hz: int = OUTPUT_RATE_HZ) -> Pcm:
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return Pcm((0.2 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32), rate_hz)


def test_shares_have_wilsons_interval():
    one = share("x", [True] * 8 + [False] * 2)

    # Newcombe 1998, method 3, of 8 in 10.
    assert (one.value, round(one.low, 3), round(one.high, 3)) == (0.8, 0.49, 0.943)
    assert share("x", []).count == 0


def test_rates_are_for_ten_minutes_and_none_is_not_never():
    none, some = rate("x", 0, 600.0), rate("x", 4, 1200.0)

    assert (none.value, none.low) == (0.0, 0.0)
    # The exact interval of no event ends at 3.69.
    assert none.high == pytest.approx(3.69, abs=0.05)
    assert (some.value, some.low < 2 < some.high) == (2.0, True)
    assert rate("x", 0, 0.0).count == 0


def test_a_median_has_an_interval_around_it():
    one = percentile("x", [float(n) for n in range(101)], 50)

    assert one.value == 50
    assert 30 < one.low < 50 < one.high < 70


def test_a_picture_has_a_row_for_each_dialect_and_an_interval_for_what_was_measured():
    seen = TalkOutcome(turns=[200.0, 300.0, None], interruptions=[None])
    picture = as_svg({"<half>": seen.measures(), "duplex": TalkOutcome().measures()})

    root = ElementTree.fromstring(picture)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    names = len(seen.measures())
    assert texts.count("<half>") == texts.count("duplex") == names
    assert "response latency" in texts
    measured = sum(1 for one in seen.measures() if one.count)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == measured > 4


def test_missed_turns_and_answers_that_did_not_stop_are_not_latencies():
    seen = TalkOutcome(turns=[200.0, None], interruptions=[None, 100.0, 300.0])
    found = {one.name: one for one in seen.measures()}

    assert found["takeover rate"].value == found["missed turns"].value == 0.5
    assert found["response latency"].value == 200
    assert found["stop rate"].value == pytest.approx(2 / 3)
    assert found["stop latency"].value == 200
    assert math.isnan(found["backchannel yield"].value)


async def test_the_ear_plays_without_gaps_and_stops_where_it_is_cut():
    loudspeaker, now_s = SimulatedLoudspeaker(), asyncio.get_running_loop().time()
    loudspeaker.take(Piece("a", tone(50.0)))
    loudspeaker.take(Speaking("b", tone(50.0), False, 0, None))
    loudspeaker.take(Piece("silence", Pcm.silence(OUTPUT_RATE_HZ, OUTPUT_RATE_HZ)))
    (answer,) = loudspeaker.played
    length_s = answer.end_s - answer.start_s
    loudspeaker.take(Interruption("suspected", 0, ""))
    still = answer.was_cut
    loudspeaker.take(Interruption("stopped", 0, ""))
    await loudspeaker.until_over(answer, now_s + 1000)

    assert length_s == pytest.approx(100, abs=1e-6)
    assert not still
    assert answer.was_cut
    assert answer.end_s - answer.start_s < 100
    assert await loudspeaker.answer(answer.end_s, now_s) is None


def speaker(chunk_s: float) -> tuple[SimulatedMicrophone, list[Pcm]]:
    """One whose client is in a session, and what that sends."""
    sent: list[Pcm] = []

    class Listener(HalfDuplexClient):
        def send_audio(self, pcm: Pcm) -> None:
            sent.append(pcm)

    client = Listener("http://localhost:1")
    client.phase = "active"
    return SimulatedMicrophone(client, chunk_s), sent


async def test_what_is_said_begins_when_it_is_said_whatever_the_chunk():
    microphone, sent = speaker(0.2)
    speaking = asyncio.create_task(microphone.run())
    while not sent:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    begun_s = microphone._started_s
    first_s, last_s = microphone.say(np.full(INPUT_RATE_HZ // 2, 0.5, np.float32))
    count = len(sent)
    while len(sent) < count + 4:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    speaking.cancel()

    after = np.concatenate([pcm.samples for pcm in sent[count:]])
    loud = np.flatnonzero(np.abs(after) > 0.25)
    assert last_s - first_s == pytest.approx(0.5)
    assert loud[0] == pytest.approx((first_s - begun_s) * INPUT_RATE_HZ, abs=2)
    assert len(loud) == INPUT_RATE_HZ // 2


async def test_a_microphone_that_was_kept_waiting_loses_no_time():
    microphone, sent = speaker(0.02)
    speaking = asyncio.create_task(microphone.run())
    await asyncio.sleep(0.05)
    _, last_s = microphone.say(np.full(INPUT_RATE_HZ // 10, 0.5, np.float32))
    time.sleep(0.3)  # noqa: ASYNC251
    loop = asyncio.get_running_loop()
    while sum(map(len, sent)) * 2 < INPUT_RATE_HZ:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    speaking.cancel()

    said = np.concatenate([pcm.samples for pcm in sent])
    last = np.flatnonzero(np.abs(said) > 0.25)[-1] + 1
    # The newest chunk ends where the next one begins.
    assert microphone._started_s - (len(said) - last) / INPUT_RATE_HZ == pytest.approx(
        last_s, abs=0.001
    )
    assert microphone._started_s <= loop.time()


def test_recordings_of_ones_own(tmp_path):
    quiet = np.zeros(8000, np.float32)
    samples = np.concatenate([quiet, tone(0.5, INPUT_RATE_HZ).samples, quiet])
    (tmp_path / "turns").mkdir()
    (tmp_path / "turns" / "a.wav").write_bytes(encode_wav(Pcm(samples, INPUT_RATE_HZ)))
    found = own(tmp_path)

    assert [round(len(one) / INPUT_RATE_HZ, 2) for one in found.turns] == [0.5]
    assert found.interruptions == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SetupError, match="no recordings"):
        own(tmp_path / "empty")


def test_the_table_of_recorded_people_says_what_was_cut_and_what_failed():
    half, *_ = duplex_people.WAYS
    one = duplex_people.WayOutcome(half, {300: [False] * 12, 900: [True] * 2 + [False] * 10})
    one.first_ms += [400.0, 600.0, None]
    one.failures += 2 * ["ServerLost: gone"]
    head, row, _, *rest = duplex_people.as_table([one]).splitlines()

    assert head.split()[-6:] == ["first", "sound", "(median", "/", "p95)", "aim"]
    cells = "half-duplex 0 of 12 - - 2 of 12 - 500 / 590 ms 500 / 900 ms"
    assert " ".join(row.split()) == cells
    assert rest == [
        "half-duplex: 1 sentences were not answered",
        "half-duplex: ServerLost: gone (2 times)",
    ]


@pytest.mark.timeout(120)
async def test_a_recorded_sentence_is_said_to_a_server_with_and_without_a_pause():
    sentence = spoken("Tell me a long story about a fox who could not sleep at night, please.")
    ways = [
        dataclasses.replace(way, pauses_ms=(300,))
        for way in duplex_people.WAYS
        if way.name in ("half-duplex", "server_vad")
    ]
    async with server(2) as url:
        found = await duplex_people.measure(url, {}, [sentence], 30.0, ways)

    for one in found:
        assert one.failures == []
        assert one.cuts == {300: [False]}
        (first_ms,) = one.first_ms
        assert first_ms is not None
        assert first_ms > 0


@long_only
@pytest.mark.timeout(300)
async def test_conversations_with_a_server(monkeypatch: pytest.MonkeyPatch):
    # How long it coughs decides how sure the figures are, and nothing else.
    monkeypatch.setattr(duplex_talk, "NOISE_S", 6.0)
    material = Material(
        turns=(spoken("Tell me a long story about a fox who could not sleep at night, please."),),
        interruptions=(spoken("Wait, stop please, I wanted to ask something else."),) * 2,
        acknowledgements=(spoken("yes"),) * 2,
    )
    async with server(len(TRIED)) as url:
        held = await asyncio.gather(
            *(converse(url, {}, name, 1, "stop", material, 30.0) for name in TRIED)
        )
    reports: dict[str, TalkOutcome] = dict(zip(TRIED, held, strict=True))

    for observed in held:
        assert observed.failures == []
        # One before each of interruption, acknowledgement and noise, and one of its own.
        assert len(observed.turns) == 4
        assert [ms for ms in observed.turns if ms is not None]
        assert {ms: len(each) for ms, each in observed.pauses.items()} == {500: 1}
    assert [ms for one in held for ms in one.interruptions if ms is not None]
    data = json.loads(json.dumps(as_data(reports)))
    assert set(data) == set(TRIED)
    assert data["duplex"]["measures"]["takeover rate"]["count"] == 4
    assert "response latency p95" in as_table(reports)
