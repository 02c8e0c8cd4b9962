"""REST of what stays: reading, packing, uploading, commenting, sharing, deleting, and who may."""

import asyncio
import contextlib
import fcntl
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.gateways import RunningGateway, running_gateway
from tests.support.patience import HANG_S
from tests.support.raw_sockets import raw_client
from tests.support.recordings import JPEG, Running, recorded, tone

from parley.errors import TooLarge
from parley.gateway.http import sessions
from parley.media.wav import encode_wav
from parley.recording import store
from parley.recording.journal import remove
from parley.recording.layout import RecordingFolders

ADMIN = {"authorization": "Bearer the-admin"}
WAV = encode_wav(tone(0.1, 8000))


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    storage = {"data_dir": tmp_path, "min_free_gb": 1e-6}
    async with running_gateway(storage=storage, security={"admin_token": "the-admin"}) as running:
        yield running


async def test_a_recording_is_read_by_its_id(http, tmp_path):
    recorded(tmp_path, "one")

    meta = (await http.get("/api/sessions/one")).json()
    timeline = (await http.get("/api/sessions/one/recording")).json()
    page = await http.get("/s/one")

    assert meta["type"] == meta["app_type"] == "omni_duplex"
    assert meta["session_id"] == "one"
    assert [chunk["index"] for chunk in timeline["chunks"]] == [0, 1]
    assert page.status_code == 200


async def test_a_running_session_has_no_timeline_yet(http, tmp_path):
    with Running(tmp_path, "live"):
        answer = await http.get("/api/sessions/live/recording")
        deletion = await http.delete("/api/sessions/live", headers=ADMIN)
        listed = (await http.get("/api/sessions", headers=ADMIN)).json()

    assert answer.status_code == 202
    assert (deletion.status_code, deletion.json()["code"]) == (409, "still_recording")
    assert [one["session_id"] for one in listed["sessions"]] == ["live"]


async def test_assets_come_whole_in_parts_and_by_head(http, tmp_path):
    folder = recorded(tmp_path, "one")
    sound = (folder.path / "user_audio/000.wav").read_bytes()
    path = "/api/sessions/one/assets/user_audio/000.wav"

    whole = await http.get(path)
    part = await http.get(path, headers={"range": "bytes=10-19"})
    beyond = await http.get(path, headers={"range": "bytes=99999999-"})
    head = await http.head(path)
    frame = await http.get("/api/sessions/one/assets/user_frames/000.jpg")

    assert whole.content == sound
    assert whole.headers["content-type"] == "audio/wav"
    assert "sandbox" in whole.headers["content-security-policy"]
    assert (part.status_code, part.content) == (206, sound[10:20])
    assert beyond.status_code == 416
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(sound)
    assert frame.content == JPEG


async def test_asset_paths_lead_nowhere_else(gateway, tmp_path):
    recorded(tmp_path, "one")
    recorded(tmp_path, "two")
    for path in (
        "../two/meta.json",
        "..%2f..%2fstate.db",
        "%2e%2e/%2e%2e/state.db",
        "user_audio/..%5c..%5cstate.db",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "user_audio//000.wav",
        "./meta.json",
        "journal.jsonl",
        "meta.json",
        "inputs.f32",
        "user_audio/000.wav%00.jpg",
        "a/b/c.wav",
    ):
        status, body = await raw_get(gateway, f"/api/sessions/one/assets/{path}")

        assert status in (400, 404), path
        assert set(json.loads(body)) == {"detail", "code"}, path
        assert str(tmp_path).encode() not in body, path


async def raw_get(
    gateway: RunningGateway, path: str, *, method: str = "GET", headers: str = ""
) -> tuple[int, bytes]:
    """Without a client that tidies paths up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.port)
    top = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    writer.write(top.encode())
    async with asyncio.timeout(HANG_S):
        answer = await reader.read()
    writer.close()
    first, _, body = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), body


async def test_links_are_not_followed(http, tmp_path):
    folder = recorded(tmp_path, "one")
    secret = tmp_path / "secret.wav"
    secret.write_bytes(WAV)
    (folder.path / "user_audio/evil.wav").symlink_to(secret)
    (folder.path / "linked").symlink_to(tmp_path)
    (RecordingFolders(tmp_path).root / "alias").symlink_to(tmp_path)

    direct = await http.get("/api/sessions/one/assets/user_audio/evil.wav")
    over_folder = await http.get("/api/sessions/one/assets/linked/secret.wav")
    as_folder = await http.get("/api/sessions/alias")
    packed = zipfile.ZipFile(io.BytesIO((await http.get("/api/sessions/one/download")).content))

    assert direct.status_code == over_folder.status_code == 400
    assert as_folder.status_code == 404
    assert not any("evil" in name or "secret" in name for name in packed.namelist())


async def test_unknown_and_strange_ids_are_404_everywhere(gateway):
    for bad in ("unknown", "..", "a%2fb", "%2e%2e%2fx", "x" * 200, "a b", "ä", "-x", "a.b"):
        for tail in ("", "/recording", "/assets/a.wav", "/download", "/comment"):
            status, body = await raw_get(gateway, f"/api/sessions/{bad}{tail}")

            assert status in (400, 404), (bad, tail, body)
            assert bad != "unknown" or json.loads(body)["code"] == "not_found", tail


async def test_the_download_holds_everything_but_its_owner_and_streams(http, tmp_path):
    folder = recorded(tmp_path, "one", units=3)
    expected = {str(path.relative_to(folder.path)) for path in folder.files()}
    folder.owner.write_text("k_1")

    async with http.stream("GET", "/api/sessions/one/download") as answer:
        assert "content-length" not in answer.headers
        data = await answer.aread()

    packed = zipfile.ZipFile(io.BytesIO(data))
    assert packed.testzip() is None
    assert {name.removeprefix("one/") for name in packed.namelist()} == expected
    assert answer.headers["content-disposition"] == 'attachment; filename="one.zip"'


def test_packing_holds_one_piece_at_a_time(tmp_path):
    folder = recorded(tmp_path, "one")
    (folder.path / "frontend_replay.wav").write_bytes(os.urandom(8 * store.PIECE_BYTES))

    sizes = [len(piece) for piece in store.zip_pieces(folder)]

    assert max(sizes) < 2 * store.PIECE_BYTES
    assert sum(sizes) > 8 * store.PIECE_BYTES


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (WAV, "wav"),
        (b"\0\0\0\x18ftypmp42" + b"\0" * 100_000, "mp4"),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\x82\x84webm" + b"\0" * 100, "webm"),
    ],
)
async def test_an_upload_is_known_by_its_content(gateway, http, tmp_path, content, kind):
    folder = recorded(tmp_path, "one")

    answer = await http.post(
        "/api/sessions/one/upload-recording",
        files={"file": ("../../evil.html", content, "text/html")},
    )

    assert answer.json() == {
        "status": "ok",
        "path": f"frontend_replay.{kind}",
        "size_bytes": len(content),
    }
    assert folder.upload(kind).read_bytes() == content
    assert gateway.runtime.links.budget.peak_bytes == 0, "it went to the disk"


async def test_an_upload_of_another_kind_or_to_a_full_disk_leaves_nothing(
    http, tmp_path, monkeypatch
):
    folder = recorded(tmp_path, "one")
    before = sorted(folder.files())

    html = await http.post(
        "/api/sessions/one/upload-recording",
        files={"file": ("x.webm", b"<script>alert(1)</script>", "video/webm")},
    )
    nothing = await http.post("/api/sessions/one/upload-recording")
    nowhere = await http.post(
        "/api/sessions/nobody/upload-recording", files={"file": ("x", WAV, "audio/wav")}
    )

    monkeypatch.setattr(sessions, "free_bytes", lambda path: 999)
    full = await http.post(
        "/api/sessions/one/upload-recording", files={"file": ("x", WAV, "audio/wav")}
    )

    assert (html.status_code, html.json()["code"]) == (400, "unsupported_media_type")
    assert (full.status_code, full.json()["code"]) == (507, "insufficient_storage")
    assert nothing.status_code == 422
    assert nowhere.status_code == 404
    assert sorted(folder.files()) == before


async def test_uploads_of_a_key_leave_the_others_of_its_address_their_own(gateway, http, tmp_path):
    recorded(tmp_path, "one")
    path = "/api/sessions/one/upload-recording"
    busy, other = [(await gateway.new_key(per_minute=100_000))["key"] for _ in range(2)]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nX-Api-Key: {busy}\r\nContent-Length: 99\r\n"
        "Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    )

    async def status(key: str) -> int:
        return (await http.post(path, headers={"x-api-key": key})).status_code

    async with raw_client(gateway.gateway.port) as one, raw_client(gateway.gateway.port) as two:
        for client in (one, two):
            await client.send(head.encode())
        async with asyncio.timeout(HANG_S):
            while await status(busy) != 429:
                pass
        assert await status(other) == 422, "its form is read"


async def test_an_upload_that_is_too_large_leaves_nothing(gateway, tmp_path):
    folder = recorded(tmp_path, "one")
    before = sorted(folder.files())
    for size, limit in ((len(WAV), 1000), (3 * store.PIECE_BYTES, 2 * store.PIECE_BYTES)):
        with pytest.raises(TooLarge):
            store.take_upload(folder, io.BytesIO(WAV.ljust(size)), limit_bytes=limit)

    status, _ = await raw_get(
        gateway,
        "/api/sessions/one/upload-recording",
        method="POST",
        headers=f"Content-Length: {10**10}\r\nContent-Type: multipart/form-data; boundary=x\r\n",
    )

    assert status == 413
    assert sorted(folder.files()) == before


async def test_comments_are_kept_changed_and_removed(http, tmp_path):
    folder = recorded(tmp_path, "one")
    path = "/api/sessions/one/comment"

    empty = (await http.get(path)).json()
    text = "<img src=x onerror=alert(1)> 好的"
    written = (await http.post(path, json={"comment": text})).json()
    read = await http.get(path)
    await http.post(path, json={"comment": ""})

    assert empty == {"comment": ""}
    assert written == {"status": "ok", "len": len(text)}
    assert read.json() == {"comment": text}
    assert read.headers["content-type"] == "application/json"
    assert not folder.comment.exists()
    assert (await http.post(path, json={"comment": "x" * 2001})).status_code == 413
    assert (await http.post(path, json={"comment": 7})).status_code == 422
    assert (await http.post("/api/sessions/no/comment", json={"comment": "x"})).status_code == 404


async def test_a_share_link_shows_but_reports_no_id_and_changes_nothing(http, tmp_path):
    first = "the_first_id"
    recorded(tmp_path, "the_real_id", config={"continues": first}, continues=first)
    link = (await http.post("/api/sessions/the_real_id/share", json={})).json()
    base = f"/api/sessions/{link['token']}"

    meta = await http.get(base)
    timeline = await http.get(f"{base}/recording")
    sound = await http.get(f"{base}/assets/user_audio/000.wav")
    download = await http.get(f"{base}/download")
    page = await http.get(link["path"])
    packed = zipfile.ZipFile(io.BytesIO(download.content))

    assert meta.status_code == sound.status_code == page.status_code == 200
    told = [meta.text, timeline.text, str(download.headers), *packed.namelist()]
    told += [packed.read(name).decode("latin-1") for name in packed.namelist()]
    assert not any(own in text for text in told for own in ("the_real_id", "the_first_id"))
    for method, tail, body in (
        ("POST", "/comment", {"comment": "x"}),
        ("POST", "/share", {}),
        ("POST", "/replay", {}),
    ):
        answer = await http.request(method, base + tail, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "read_only")
    deletion = await http.delete(base, headers=ADMIN)
    assert deletion.status_code == 403
    off = await http.post("/api/sessions/the_real_id/replay")
    assert (off.status_code, off.json()["code"]) == (403, "forbidden")


async def test_share_links_belong_to_their_server(http, tmp_path):
    recorded(tmp_path, "one")
    link = (await http.post("/api/sessions/one/share", json={"expires_in_s": 60})).json()
    forever = (await http.post("/api/sessions/one/share", json={"expires_in_s": None})).json()
    path = f"/api/sessions/{link['token']}"
    assert (await http.get(path)).status_code == 200
    async with running_gateway() as other, other.http() as elsewhere:
        foreign = await elsewhere.get(path)
    flipped = link["token"][:-3] + ("abc" if link["token"][-3:] != "abc" else "abd")
    forged = await http.get(f"/api/sessions/{flipped}")

    for refused in (foreign, forged):
        assert (refused.status_code, refused.json()["code"]) == (403, "invalid_share_link")
    assert forever["expires_at"] is None
    assert (await http.get(f"/api/sessions/{forever['token']}")).status_code == 200


async def test_lists_pins_and_deletion_take_a_token(http, tmp_path):
    folder = recorded(tmp_path, "one")

    listing = await http.get("/api/sessions")
    pinning = await http.put("/api/sessions/one/pin", json={"pinned": True})
    deletion = await http.delete("/api/sessions/one")
    assert listing.status_code == pinning.status_code == deletion.status_code == 401
    assert folder.path.is_dir()

    await http.put("/api/sessions/one/pin", json={"pinned": True}, headers=ADMIN)
    listed = (await http.get("/api/sessions", headers=ADMIN)).json()
    deleted = await http.delete("/api/sessions/one", headers=ADMIN)
    impossible = await http.delete("/api/sessions/one.wav", headers=ADMIN)
    after = (await http.get("/api/sessions", headers=ADMIN)).json()

    assert [(one["session_id"], one["pinned"]) for one in listed["recordings"]] == [("one", True)]
    assert deleted.json() == {"success": True}
    assert impossible.status_code == 404
    assert not folder.path.exists()
    assert after["total_recordings"] == 0


async def test_anyone_who_had_the_session_may_delete_its_recording(http, tmp_path):
    recording = "20261128_151618_rt_4f1c9a7be02d4c5899aa31d07be6f210-a"
    folder = recorded(tmp_path, recording)
    other = recorded(tmp_path, "20261128_151622_rt_99")
    rest = recorded(tmp_path, "20261128_151622_rt_77", continues=recording)
    link = (await http.post(f"/api/sessions/{recording}/share", json={})).json()
    parts = [
        (await http.get(f"/api/sessions/{one}")).json().get("parts")
        for one in (recording, rest.recording_id, other.recording_id, link["token"])
    ]

    by_the_link = await http.delete(f"/api/sessions/{link['token']}")
    with rest.journal.open("rb") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        refused = await http.delete(f"/api/sessions/{recording}")
    still_there = folder.path.is_dir()
    by_its_id = await http.delete(f"/api/sessions/{recording}")

    assert parts == [[recording, rest.recording_id]] * 2 + [None, None]
    assert by_the_link.status_code in (401, 403)
    assert refused.status_code == 409
    assert still_there
    assert by_its_id.json() == {"success": True}
    # Another worker continued the session.
    assert [one.path.exists() for one in (folder, rest, other)] == [False, False, True]


async def test_the_rest_of_a_session_is_deleted_by_the_id_that_its_client_knows(http, tmp_path):
    lost_with_its_host = "20261128_151618_rt_4f1c9a7be02d4c5899aa31d07be6f210-a"
    rest = recorded(tmp_path, "20261128_151622_rt_77", continues=lost_with_its_host)

    answers = [await http.delete(f"/api/sessions/{lost_with_its_host}") for _ in range(2)]

    assert [each.status_code for each in answers] == [200, 404]
    assert not rest.path.exists()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/assets/user_audio/000.wav", {}),
        ("POST", "/comment", {"json": {"comment": "late"}}),
        ("POST", "/upload-recording", {"files": {"file": ("x", WAV, "audio/wav")}}),
        ("PUT", "/pin", {"json": {"pinned": True}}),
    ],
)
async def test_a_recording_that_is_deleted_during_a_request_is_404(
    gateway, http, tmp_path, monkeypatch, method, path, body
):
    folder = recorded(tmp_path, "one")

    def deleted_before(do):
        def run(*given, **named):
            with contextlib.suppress(FileNotFoundError):
                store.delete(folder)
            return do(*given, **named)

        return run

    for name in ("write_comment", "take_upload", "pin"):
        monkeypatch.setattr(store, name, deleted_before(getattr(store, name)))
    # The file is found, and gone when the response is sent.
    monkeypatch.setattr(sessions._Asset, "__init__", deleted_before(sessions._Asset.__init__))

    answer = await http.request(method, f"/api/sessions/one{path}", headers=ADMIN, **body)

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert not folder.path.exists()


def test_two_deletions_of_one_recording_do_not_disturb_each_other(tmp_path, monkeypatch):
    folder = recorded(tmp_path, "one_1")

    def twice(path: Path) -> None:
        remove(path)
        remove(path)

    monkeypatch.setattr("parley.recording.store.remove", twice)

    assert store.delete_session(folder) == []
    assert not folder.path.exists()


async def test_an_erasure_includes_a_recording_that_arrives_meanwhile(gateway, http, tmp_path):
    def of_anna(recording_id: str) -> None:
        recorded(tmp_path, recording_id).owner.write_text("u_anna")

    async def arrives(ids: list[str]) -> None:
        of_anna("call_2")

    of_anna("call_1")
    gateway.runtime.stores.handover.refuse_rest = arrives

    erased = await http.delete("/api/sessions", params={"key": "u_anna"}, headers=ADMIN)

    assert erased.json()["recordings"] == 2
    assert list(RecordingFolders(tmp_path)) == []
    assert await gateway.runtime.stores.state.erased_s("u_anna"), "for what arrives later"


async def test_a_recording_that_cannot_be_deleted_does_not_protect_others(tmp_path):
    stuck, other = recorded(tmp_path, "a"), recorded(tmp_path, "b")
    (tmp_path / "sessions" / ".a.deleted" / "x").mkdir(parents=True)

    with pytest.raises(OSError):
        sessions._erase(RecordingFolders(tmp_path), ["a", "b"])

    assert [one.path.exists() for one in (stuck, other)] == [True, False]


async def test_a_broken_recording_is_listed_with_its_problem(http, tmp_path):
    recorded(tmp_path, "fine")
    recorded(tmp_path, "torn").meta.write_text("{")
    recorded(tmp_path, "bare").meta.write_text('{"created_at": "2026-01-02T03:04:05Z"}')

    listed = (await http.get("/api/sessions", headers=ADMIN)).json()["recordings"]

    assert {one["session_id"]: (one["title"], one["problem"]) for one in listed} == {
        "fine": ("", None),
        "torn": ("", "meta.json is not JSON"),
        "bare": ("", None),
    }
    assert (await http.get("/api/sessions/torn")).status_code == 404
