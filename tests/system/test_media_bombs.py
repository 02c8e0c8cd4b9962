"""Small files that are large inside, sent to a real server: memory of the worker stays, the client
hears a documented answer, and a conversation next to it continues."""

from __future__ import annotations

import base64
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import av
import numpy as np
import psutil
import pytest
from PIL import Image
from tests.support.blocking import hear, prepare, say
from tests.support.patience import PROCESS_S
from tests.support.processes import Process, serving
from tests.support.talking import LOUD
from websockets.sync.client import connect

pytestmark = pytest.mark.starts_python

MIB = 1024 * 1024
GROWTH_BYTES = 300 * MIB


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    with serving(tmp_path_factory.mktemp("bombs"), "--slots", "3") as process:
        yield process, process.url.replace("http", "ws", 1)


def black_film(seconds: int, fps: int, size: tuple[int, int]) -> bytes:
    """A clip of black: a few kilobytes a second."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        picture = np.zeros((size[1], size[0], 3), np.uint8)
        for index in range(seconds * fps):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return buffer.getvalue()


@functools.cache
def white_picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8000, 7900), "white").save(buffer, "PNG")
    return buffer.getvalue()


def part(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": kind, "data": base64.b64encode(data).decode(), **more}


class Watched:
    """The largest growth of the server's own processes while the block runs; a decoder's child is
    the one that may grow."""

    def __init__(self, process: Process) -> None:
        self.most_bytes = 0
        serve = psutil.Process(process.popen.pid)
        workers = [
            each for each in serve.children() if "parley.executor.child" in " ".join(each.cmdline())
        ]
        assert len(workers) == 1
        self._servers = [serve, *workers]
        self._before = {each.pid: each.memory_info().rss for each in self._servers}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for each in self._servers:
                grown = each.memory_info().rss - self._before[each.pid]
                self.most_bytes = max(self.most_bytes, grown)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def ask(url: str, content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is answered to a chat request."""
    with connect(f"{url}/ws/chat?extensions=true", max_size=None) as client:
        client.send(json.dumps({"messages": [{"role": "user", "content": content}]}))
        said = []
        while True:
            said.append(hear(client, PROCESS_S))
            if said[-1]["type"] in ("done", "error"):
                return said


@pytest.mark.parametrize(
    ("make", "count", "ending"),
    [
        (lambda: part("video", black_film(8, 10, (1920, 1080)), stack_frames=16), 1, "done"),
        (lambda: part("image", white_picture()), 4, "done"),
        (lambda: part("image", white_picture()), 5, "error"),
    ],
    ids=["film", "pictures", "more pixels than a request may have"],
)
def test_a_media_bomb_kills_nobody(
    serve: tuple[Process, str],
    request: pytest.FixtureRequest,
    make: Callable[[], dict[str, Any]],
    count: int,
    ending: str,
) -> None:
    process, url = serve
    content = [make()] * count
    session = f"omni_{request.node.callspec.indices['make']}"
    with connect(f"{url}/ws/duplex/{session}?extensions=true") as live:
        prepare(live)

        with Watched(process) as watched:
            said = ask(url, content)

        assert said[-1]["type"] == ending, said[-1]
        assert watched.most_bytes < GROWTH_BYTES
        say(live, "audio_chunk", audio=LOUD)
        assert hear(live)["type"] == "result"


def test_a_clip_the_context_cannot_take_is_refused_immediately_and_in_the_documented_words(
    serve: tuple[Process, str],
) -> None:
    _, url = serve
    film = part("video", black_film(64, 2, (320, 240)), stack_frames=16)

    said = ask(url, [film, film])

    assert said[-1]["type"] == "error"
    assert said[-1]["code"] == "context_full"
