"""Everything that is kept of one person: found and deleted by their key."""

import asyncio
import io
import zipfile
from pathlib import Path
from typing import Any

from tests.openai.talking_model import TalkingModel
from tests.support.gateways import until
from tests.support.sounds import speak
from tests.support.stack import RunningStack, running_stack

from parley.media.wav import encode_wav
from parley.protocol.codec import to_base64

ADMIN = {"x-admin-token": "the-admin"}
VOICE = to_base64(encode_wav(speak(1.0)))


async def talk(server: RunningStack, headers: dict[str, str], text: str) -> str:
    """Ask for an answer that is kept; the id of its response."""
    async with server.http(headers=headers) as http:
        asked = {"model": "parrot", "input": text, "store": True}
        answer = await http.post("/v1/responses", json=asked)
        assert answer.status_code == 200, answer.text
        response_id: str = answer.json()["id"]
        return response_id


async def test_a_response_that_ends_after_its_key_was_revoked_is_not_kept() -> None:
    """Nothing of an erased person comes afterwards."""
    model = TalkingModel(answer="word " * 2_000, word_s=0.05)
    async with (
        running_stack(
            load_model=lambda: model,
            storage={"recording": True},
            security={"admin_token": "the-admin"},
        ) as server,
        server.http() as http,
    ):
        alice, as_alice = await key_of(server, "alice")
        asked = {"model": "m", "input": "I live in Leeds.", "background": True}
        made = await http.post("/v1/responses", json=asked, headers=as_alice)
        pool = server.runtime.dispatcher.worker_pool
        await until(lambda: len(list(pool.leases)) == 1)
        await http.delete(f"/api/admin/keys/{alice}", headers=ADMIN)
        await http.delete("/api/sessions", params={"key": alice}, headers=ADMIN)
        model.word_s, model.answer = 0.0, ""
        response_id = made.json()["id"]
        run = f"background {response_id}"
        await until(lambda: run not in {task.get_name() for task in asyncio.all_tasks()})
        kept = await server.runtime.stores.state.response(response_id, f"key {alice}")

    assert made.status_code == 200
    assert kept is None


async def key_of(server: RunningStack, name: str) -> tuple[str, dict[str, str]]:
    made = await server.new_key(name)
    return made["id"], {"authorization": f"Bearer {made['key']}"}


async def test_what_is_kept_of_a_key_is_listed_and_deleted(tmp_path: Path) -> None:
    async with (
        running_stack(
            storage={"data_dir": tmp_path, "recording": True, "min_free_gb": 0},
            security={"admin_token": "the-admin"},
            forward_auth={"user_header": "Remote-User"},
        ) as server,
        server.http() as http,
    ):
        alice, as_alice = await key_of(server, "alice")
        bob, as_bob = await key_of(server, "bob")
        response = await talk(server, as_alice, "I live in Leeds.")
        await talk(server, as_alice, "My number is 5.")
        await talk(server, as_bob, "Hello.")
        await talk(server, {"remote-user": "anna"}, "Hello.")
        await talk(server, {}, "Hello.")
        voice = {"name": "Alice", "audio_base64": VOICE}
        await http.post("/api/assets/ref_audio", json=voice, headers=as_alice)
        await http.post("/api/assets/ref_audio", json=voice | {"name": "Bob"}, headers=as_bob)

        async def listed(key: str | None = None) -> list[dict[str, Any]]:
            query = {} if key is None else {"key": key}
            found = await http.get("/api/sessions", params=query, headers=ADMIN)
            recordings: list[dict[str, Any]] = found.json()["recordings"]
            return recordings

        await until(lambda: len(list(tmp_path.glob("sessions/*/recording.json"))) == 5)
        of_alice, everything = await listed(alice), await listed()
        shown_id = of_alice[0]["session_id"]
        packed = await http.get(f"/api/sessions/{shown_id}/download", headers=ADMIN)
        meta = await http.get(f"/api/sessions/{shown_id}", headers=ADMIN)
        owner = await http.get(f"/api/sessions/{shown_id}/assets/.owner", headers=ADMIN)

        refused = await http.delete("/api/sessions", params={"key": bob}, headers=as_alice)
        all_of_them = await http.delete("/api/sessions", headers=ADMIN)
        erased = await http.delete("/api/sessions", params={"key": alice}, headers=ADMIN)
        voices = await http.delete("/api/assets/ref_audio", params={"key": alice}, headers=ADMIN)
        unknown = await http.delete("/api/sessions", params={"key": "k_typo"}, headers=ADMIN)
        kept = await http.get(f"/v1/responses/{response}", headers=as_alice)
        left = await listed()
        voices_left = (await http.get("/api/assets/ref_audio", headers=ADMIN)).json()
        folders = list(tmp_path.glob("sessions/*"))  # noqa: ASYNC240
        audit = (await http.get("/api/admin/audit", headers=ADMIN)).json()["entries"]

    assert [one["key"] for one in of_alice] == [alice, alice]
    assert sorted(one["key"] or "" for one in everything) == [
        "",
        *sorted((alice, alice, bob)),
        "u_anna",
    ]
    # A viewer of a recording does not see whose it is.
    with zipfile.ZipFile(io.BytesIO(packed.content)) as files:
        content = b"".join(files.read(name) for name in files.namelist())
        assert not any(".owner" in name for name in files.namelist())
    assert alice.encode() not in content
    assert alice not in meta.text
    assert owner.status_code == 400

    assert (refused.status_code, all_of_them.status_code) == (403, 422)
    # The recording of the session without a key has no owner.
    left_over = {"running": 0, "without_owner": 1}
    assert erased.json() == {"recordings": 2, "responses": 2, **left_over}
    assert voices.json() == {"voices": 1}
    assert unknown.status_code == 404
    assert "There is no key 'k_typo'." in unknown.text
    assert kept.status_code == 404
    assert sorted(one["key"] or "" for one in left) == ["", bob, "u_anna"]
    assert len(folders) == 3
    assert [one["name"] for one in voices_left["ref_audios"]] == ["Bob"]
    assert {"DELETE"} == {entry["method"] for entry in audit if entry["path"] == "/api/sessions"}
