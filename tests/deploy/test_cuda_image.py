"""The CUDA image has what Triton needs to build the launcher of a kernel.

Triton compiles a small C library when a kernel is used for the first time. Here the packages that
the image installs, and nothing else of Debian, are unpacked into an empty root with this Python and
Triton, and the library is built in there. The driver's library is a stand-in: there is no card.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

DOCKERFILE = Path(__file__).parents[2] / "deploy" / "docker" / "Dockerfile"

BUILD = """
import pathlib, sys
sys.path[:0] = sys.argv[1:]
from triton.backends.nvidia import driver
utils = driver.CudaUtils()
print("built", utils.get_device_properties.__name__)
"""


def packages() -> list[str]:
    """What the image installs for CUDA, by its Dockerfile."""
    found = re.search(r"^ARG CUDA_PACKAGES=\"([^\"]+)\"$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_the_image_installs_them_where_torch_has_cuda() -> None:
    text = DOCKERFILE.read_text()

    assert 'if [ "$TORCH" != cpu ]' in text
    assert "apt-get install -y --no-install-recommends $CUDA_PACKAGES" in text


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An empty root with the image's packages."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None or shutil.which("chroot") is None:
        pytest.skip("needs Debian's package tools, and to be root")
    if sys.platform != "linux" or find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    status, archives = tmp_path / "status", tmp_path / "archives"
    status.touch()
    (archives / "partial").mkdir(parents=True)
    fetched = subprocess.run(
        [
            "apt-get", "-q", "-y", "--no-install-recommends", "--download-only",
            "-o", f"Dir::State::status={status}",
            "-o", f"Dir::Cache::archives={archives}",
            "-o", "Debug::NoLocking=1",
            "install", *packages(),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if fetched.returncode != 0:
        pytest.skip(f"Debian's packages cannot be fetched: {fetched.stderr.strip()[-200:]}")
    place = tmp_path / "root"
    place.mkdir()
    for package in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(place)], check=True)
    for folder in ("tmp", "dev"):
        (place / folder).mkdir()
    os.mknod(place / "dev" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    yield place
    shutil.rmtree(place)


def linked(source: Path, root: Path) -> None:
    """A folder at the same path below the root; without a copy where that can be."""
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    how = "-al" if source.stat().st_dev == root.stat().st_dev else "-a"
    subprocess.run(["cp", how, str(source), str(target)], check=True)


def link_libraries(program: Path, root: Path) -> None:
    """Libraries of this Python that are not below its prefix; the image's base has its own."""
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    for name in re.findall(r"=> (/\S+)", listed.stdout):
        target = root / name.lstrip("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(name), target)


def in_root(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TRITON_LIBCUDA_PATH": "/driver"}
    environment["LD_LIBRARY_PATH"] = "/driver:/usr/lib/x86_64-linux-gnu"
    chroot = shutil.which("chroot")
    assert chroot is not None
    return subprocess.run(
        [chroot, str(root), *command], env=environment, capture_output=True, text=True, check=False
    )


def test_the_launcher_of_a_kernel_is_built_with_the_images_packages(root: Path) -> None:
    spec = find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    triton = Path(spec.origin).parent
    python = Path(os.path.realpath(sys.executable))
    # In the image Python and its headers are the base's, below one prefix as here.
    linked(Path(sys.base_prefix), root)
    assert (root / sysconfig.get_paths()["include"].lstrip("/") / "Python.h").is_file()
    for module in (python, *Path(sys.base_prefix).rglob("lib-dynload/_ctypes.*.so")):
        link_libraries(module, root)
    linked(triton, root)
    source = (triton / "backends" / "nvidia" / "driver.c").read_text()
    calls = sorted(set(re.findall(r"\bcu[A-Z]\w+(?=\()", source)))
    (root / "driver").mkdir()
    (root / "driver" / "cuda.c").write_text(
        "".join(f"int {name}() {{ return 0; }}\n" for name in calls)
    )
    made = in_root(root, "gcc", "-shared", "-fPIC", "-o", "/driver/libcuda.so.1", "/driver/cuda.c")
    assert made.returncode == 0, made.stderr
    script = root / "build.py"
    script.write_text(BUILD)

    built = in_root(root, str(python), "/build.py", str(triton.parent))

    assert built.returncode == 0, built.stderr[-2000:]
    assert "built get_device_properties" in built.stdout
