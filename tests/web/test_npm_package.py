"""The JavaScript client as npm's package: its tarball is installed outside the clone, and its
README's example runs in Node and in a page of another origin."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.support.patience import HANG_S
from tests.support.programs import ended
from tests.support.stack import running_stack

ROOT = Path(__file__).resolve().parents[2]
NODE, NPM = shutil.which("node"), shutil.which("npm")
README = (ROOT / "src/parley/web/README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(NODE is None or NPM is None, reason="node or npm is absent")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Quiet."""


def sample(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, with a space, in which the tarball of `make npm` is installed."""
    folder = tmp_path_factory.mktemp("npm package")
    subprocess.run(["make", "-s", "npm", f"DIST={folder}"], cwd=ROOT, check=True, timeout=120)
    (tarball,) = folder.glob("parley-client-*.tgz")
    (folder / "package.json").write_text('{"name": "program", "type": "module"}')
    subprocess.run(
        [str(NPM), "install", "--offline", "--silent", str(tarball)],
        cwd=folder,
        check=True,
        timeout=120,
    )
    return folder


@pytest.fixture
def other_origin(program: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(program)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def output_of(*command: str, folder: Path) -> tuple[int, str]:
    code, out, errors = await ended(*command, limit_s=2 * HANG_S, cwd=folder)
    return code, out + errors


async def test_the_example_of_the_readme_runs_in_node(program):
    async with running_stack() as running:
        (program / "hello.mjs").write_text(
            sample("js").replace("https://localhost:8006", running.url)
        )
        code, said = await output_of(
            str(NODE), "--no-warnings", "--experimental-websocket", "hello.mjs", folder=program
        )

    assert code == 0, said
    assert re.fullmatch(r".*What is the capital of France\?.* \(stopped\)\n", said), said


async def test_the_example_of_the_readme_runs_in_a_page_of_another_origin(program, other_origin):
    async with running_stack(security={"allowed_origins": [other_origin]}) as running:
        code = sample("js").replace("https://localhost:8006", running.url)
        (program / "page.html").write_text(
            f'<!doctype html>{sample("html")}<script type="module">{code}</script>'
        )
        script = str(ROOT / "tests/web/npm_page.mjs")
        status, said = await output_of(
            str(NODE), "--no-warnings", script, f"{other_origin}/page.html", folder=ROOT
        )
    if status == 77:
        pytest.skip("chromium is absent")

    assert status == 0, said
    assert re.fullmatch(r".*What is the capital of France\?.* \(stopped\)\n", said), said
