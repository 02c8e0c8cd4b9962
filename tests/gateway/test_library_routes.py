import base64
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import soundfile
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.recordings import tone
from tests.support.talking import b64

from parley.errors import InvalidPayload
from parley.library.voices import VoiceLibrary
from parley.media import decoder
from parley.media.wav import encode_wav

ADMIN = {"x-admin-token": "the-admin"}
ANNA = {"name": "Anna", "audio_base64": b64(encode_wav(tone(0.5, 16_000)))}


def serving(data_dir: Path, **limits: int) -> AbstractAsyncContextManager[RunningGateway]:
    return running_gateway(
        storage={"data_dir": data_dir, "min_free_gb": 0},
        security={"admin_token": ADMIN["x-admin-token"], "trust_proxy": True},
        limits=limits,
    )


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with serving(tmp_path) as running:
        yield running


async def test_a_voice_is_added_fetched_listed_and_deleted(http):
    body = {"name": "Anna <i>", "audio_base64": b64(encode_wav(tone(1.5, 44_100)))}
    added = (await http.post("/api/assets/ref_audio", json=body)).json()
    path = f"/api/assets/ref_audio/{added['id']}"

    listed = (await http.get("/api/assets/ref_audio", headers=ADMIN)).json()
    fetched = (await http.get(path)).json()
    deleted = await http.delete(path)
    gone = await http.get(path)

    assert added["success"]
    assert listed["total"] == 1
    (voice,) = listed["ref_audios"]
    assert (voice["name"], voice["duration_ms"], voice["sample_rate"]) == ("Anna <i>", 1500, 16000)
    samples = np.frombuffer(base64.b64decode(fetched["base64"]), "<f4")
    assert len(samples) == fetched["samples"] == 24_000
    assert deleted.json() == {"success": True}
    assert gone.status_code == 404


async def test_files_are_decoded_in_turns_of_their_key_or_address(gateway, http, monkeypatch):
    owners: list[str] = []

    def add(*_: object) -> None:
        owners.append(decoder.owner.get())
        raise InvalidPayload("No voice.")

    monkeypatch.setattr(VoiceLibrary, "add", add)
    key = await gateway.new_key()
    for headers in ({"x-api-key": key["key"]}, {}):
        await http.post("/api/assets/ref_audio", json=ANNA, headers=headers)

    assert owners == [key["id"], "127.0.0.1"]


async def test_a_large_voice_is_read_piece_by_piece(http, monkeypatch: pytest.MonkeyPatch):
    """A reader of JSON keeps the interpreter for as long as a string is, in any thread."""
    sizes, decode = [0], msgspec.json.decode

    def noting(raw):
        sizes.append(len(raw))
        return decode(raw)

    monkeypatch.setattr(msgspec.json, "decode", noting)
    body = {"name": "Anna", "audio_base64": b64(encode_wav(tone(20, 48_000), 32))}
    added = await http.post("/api/assets/ref_audio", json=body)
    fetched = (await http.get(f"/api/assets/ref_audio/{added.json()['id']}")).json()

    assert len(body["audio_base64"]) > 5_000_000
    assert 0 < max(sizes) < 1000
    assert fetched["samples"] == 20 * 16_000


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "x", "audio_base64": "!!!"}, 400),
        ({"name": "x", "audio_base64": b64(b"no sound")}, 400),
        ({"name": "", "audio_base64": b64(encode_wav(tone(1, 8000)))}, 400),
        ({"name": "x", "audio_base64": b64(encode_wav(tone(61, 8000)))}, 413),
        ({"name": "x", "audio_base64": b64(bytes(11_000_000))}, 413),
        ({"name": "x", "audio_base64": "A" * 20_000_000}, 413),
        ({"name": "x"}, 422),
        ({"name": 7, "audio_base64": ""}, 422),
    ],
)
async def test_bad_voices_are_refused_and_leave_nothing(http, tmp_path, body, status):
    answer = await http.post("/api/assets/ref_audio", json=body)

    assert answer.status_code == status
    assert set(answer.json()) == {"detail", "code"}
    assert not list(tmp_path.rglob("*.wav"))


@pytest.mark.parametrize("bad", ["..%2f..%2fstate.db", "x", "%00", "0" * 32])
async def test_strange_voice_ids_are_404(http, bad):
    assert (await http.get(f"/api/assets/ref_audio/{bad}")).status_code == 404
    assert (await http.delete(f"/api/assets/ref_audio/{bad}", headers=ADMIN)).status_code == 404


async def register(http, **headers):
    answer = await http.post("/api/assets/ref_audio", json=ANNA, headers=headers)
    assert answer.status_code == 200, answer.text
    return f"/api/assets/ref_audio/{answer.json()['id']}"


async def names(http, **headers):
    listed = (await http.get("/api/assets/ref_audio", headers=headers)).json()
    return [one["name"] for one in listed["ref_audios"]]


async def key(gateway, name):
    return {"x-api-key": (await gateway.new_key(name))["key"]}


async def test_a_strangers_voice_is_listed_for_nobody_and_opened_by_its_id(gateway, http):
    path = await register(http)

    assert await names(http) == []
    assert await names(http, **await key(gateway, "other")) == []
    assert await names(http, **ADMIN) == ["Anna"]
    assert (await http.get(path)).status_code == 200


async def test_a_keys_voice_is_for_that_key_alone_even_if_its_id_is_known(gateway, http):
    anna, other = await key(gateway, "anna"), await key(gateway, "other")
    path = await register(http, **anna)

    assert await names(http, **anna) == ["Anna"]
    strangers: tuple[dict[str, str], ...] = ({}, other)
    for headers in strangers:
        assert await names(http, **headers) == []
        assert (await http.get(path, headers=headers)).status_code == 404
        assert (await http.delete(path, headers=headers)).status_code == 404
    assert (await http.get(path, headers=anna)).status_code == 200
    assert (await http.delete(path, headers=anna)).status_code == 200
    assert (await http.get(path, headers=ADMIN)).status_code == 404


async def test_an_admin_publishes_a_voice_and_takes_it_back(http):
    path = await register(http)
    refused = await http.put(f"{path}/published", json={"published": True})
    await http.put(f"{path}/published", json={"published": True}, headers=ADMIN)

    assert refused.status_code == 401
    assert await names(http) == ["Anna"]
    # Everybody knows its id now.
    assert (await http.delete(path)).status_code == 404

    await http.put(f"{path}/published", json={"published": False}, headers=ADMIN)
    assert await names(http) == []


async def test_one_address_registers_so_many_voices_and_keys_have_their_own(tmp_path):
    async with serving(tmp_path, voices_per_client=2) as gateway, gateway.http() as http:
        first, _ = [await register(http) for _ in range(2)]
        third = await http.post("/api/assets/ref_audio", json=ANNA)
        await register(http, **await key(gateway, "anna"))
        await http.delete(first)
        await register(http)

    assert third.status_code == 409
    assert third.json()["code"] == "too_many_voices"
    assert "127.0.0.1" not in "".join(each.read_text() for each in tmp_path.rglob("*.json"))


async def test_presets_come_by_mode_or_flat_without_their_sounds(http, tmp_path):
    folder = tmp_path / "presets" / "turnbased"
    folder.mkdir(parents=True)
    soundfile.write(tmp_path / "presets" / "me.wav", tone(1.0, 24_000).samples, 24_000)
    (folder / "me.yaml").write_text(
        "id: me\norder: 1\nname: Me\nsystem_content:\n"
        "  - {type: text, text: Imitate}\n  - {type: audio, path: me.wav}\n"
    )

    by_mode = (await http.get("/api/presets")).json()
    flat = (await http.get("/api/presets", params={"format": "list"})).json()
    sounds = (await http.get("/api/presets/turnbased/me/audio")).json()
    none = await http.get("/api/presets/omni/call_en/audio")
    other = await http.get("/api/presets", params={"format": "tree"})
    (folder / "bad.yaml").write_text("[")
    state = (await http.get("/api/admin/state", headers=ADMIN)).json()

    assert list(by_mode) == ["turnbased", "half_duplex_audio", "omni", "audio_duplex"]
    assert by_mode["turnbased"][0]["system_content"] == [
        {"type": "text", "text": "Imitate"},
        {"type": "audio", "name": "me", "duration": 1.0, "path": "me.wav", "data": None},
    ]
    assert by_mode["omni"][0]["system_prompt"]
    assert {one["mode"] for one in flat} == set(by_mode)
    (sound,) = sounds["system_content_audio"]
    assert len(base64.b64decode(sound["data"])) == 4 * 16_000
    assert none.status_code == 404
    assert other.status_code == 422
    assert state["problems"] == ["presets/turnbased/bad.yaml: it is not YAML"]


async def test_neighbours_in_one_ipv6_network_share_a_strangers_voices(tmp_path: Path):
    async with serving(tmp_path, voices_per_client=1) as gateway, gateway.http() as http:
        answers = [
            await http.post(
                "/api/assets/ref_audio", json=ANNA, headers={"x-forwarded-for": address}
            )
            for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
        ]

    assert [answer.status_code for answer in answers] == [200, 409, 200]
