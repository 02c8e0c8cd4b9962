"""The wheel, installed in an empty environment far from the clone: serve, chat and talk work.

Takes minutes and fetches packages, so it runs only when asked for: PARLEY_TEST_WHEEL=1.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.skipif(
        "PARLEY_TEST_WHEEL" not in os.environ, reason="PARLEY_TEST_WHEEL=1 runs it; takes minutes"
    ),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


def run(*command: str | Path, folder: Path, limit_s: float = 1500) -> str:
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=plain,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    data = ROOT / "packages" / "parley-pocket-data"
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT, data, folder=ROOT)
    (made,) = folder.glob("parley_voice-*.whl")
    return made


@pytest.fixture(scope="module")
def weights(wheel: Path) -> Path:
    """The wheel of the pocket model's weights, which is another distribution."""
    (made,) = wheel.parent.glob("parley_pocket_data-*.whl")
    return made


def environment(folder: Path, *requirements: str | Path) -> Path:
    """The programs of a new environment with `requirements` in it."""
    venv.create(folder, with_pip=True)
    run(
        *(folder / "bin" / "python", "-m", "pip", "install", "-q"),
        *("-c", ROOT / "constraints.txt"),
        *requirements,
        folder=folder,
    )
    return folder / "bin"


@pytest.fixture(scope="module")
def server(
    wheel: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path]]:
    programs = environment(tmp_path_factory.mktemp("server") / "venv", f"{wheel}[worker]")
    folder = tmp_path_factory.mktemp("serving")
    advice = without_weights(programs, folder)
    assert "parley-pocket-data" in advice, advice
    run(programs / "python", "-m", "pip", "install", "-q", "--no-deps", weights, folder=folder)
    process = subprocess.Popen(
        [str(programs / "parley"), "serve", "--host", "127.0.0.1", "--port", "0"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"ready after .* https://\S+?:(\d+)", line):
                break
        else:
            raise AssertionError("".join(said))
        (folder / "parley.toml").write_text(f"[gateway]\nport = {found[1]}\n")
        yield programs, folder
    finally:
        process.terminate()
        process.communicate(timeout=60)


def without_weights(programs: Path, folder: Path) -> str:
    """What `serve` says where the weights are not installed; it must not start."""
    done = subprocess.run(
        [str(programs / "parley"), "serve", "--host", "127.0.0.1", "--port", "0"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stdout


def test_chat_and_talk_work_far_from_the_clone(server: tuple[Path, Path]) -> None:
    programs, folder = server

    said = run(
        programs / "parley", "chat", "What is the capital of Italy?", folder=folder, limit_s=120
    )
    heard = run(
        *(programs / "parley", "talk", "--file", ROOT / "examples" / "questions.wav"),
        *("--save", "answer.wav"),
        folder=folder,
        limit_s=300,
    )

    assert "The capital of Italy is Rome." in said
    assert "Your name is Anna." in heard
    assert (folder / "answer.wav").stat().st_size > 100_000


def test_a_hint_names_the_wheel(server: tuple[Path, Path], wheel: Path) -> None:
    programs, folder = server

    advice = run(
        *(programs / "python", "-c"),
        "from parley.installation import install_command as c; print(c('talk'))",
        folder=folder,
    )

    assert advice.strip().endswith(f"install '{wheel}[talk]'")


def test_the_client_alone_is_small_and_typed(
    wheel: Path, server: tuple[Path, Path], tmp_path: Path
) -> None:
    programs = environment(tmp_path / "venv", str(wheel))
    _, folder = server

    said = run(programs / "parley", "chat", "Hello!", folder=folder, limit_s=120)

    assert "Hello" in said
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    names = {path.name for path in site.iterdir()}
    assert not names & {"torch", "starlette", "uvicorn", "onnxruntime", "transformers"}
    assert (site / "parley" / "py.typed").is_file()
