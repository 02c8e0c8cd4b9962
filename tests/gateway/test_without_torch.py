"""Gateway, protocol and client work where the packages of models are not installed."""

import textwrap

from tests.support.programs import python

BLOCKED = (
    "torch",
    "transformers",
    "onnxruntime",
    "silero_vad",
    "safetensors",
    "huggingface_hub",
    "av",
    "PIL",
    "scipy",
    "parley.engine",
    "parley.models",
    "parley.views",
    "parley.session",
    "parley.worker",
)

PROGRAM = """
import asyncio, importlib, importlib.abc, pkgutil, sys, urllib.request

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == blocked or name.startswith(blocked + ".") for blocked in BLOCKED):
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

sys.meta_path.insert(0, Block())

import parley
for package in ("protocol", "dialects", "gateway", "client", "executor"):
    package = "parley." + package
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(found.name)

from parley.gateway.main import Gateway
from parley.settings import GatewaySettings, Settings

async def serve():
    gateway = Gateway(Settings(gateway=GatewaySettings(host="127.0.0.1", port=0, http=True)))
    started = asyncio.Event()
    serving = asyncio.create_task(gateway.serve(started.set))
    await started.wait()
    def get():
        with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/health") as response:
            return response.read()
    print((await asyncio.to_thread(get)).decode())
    gateway.stop_now()
    await serving

asyncio.run(serve())
loaded = [name for name in sys.modules if name in BLOCKED]
assert not loaded, loaded
"""


def test_gateway_protocol_and_client_serve_where_torch_cannot_be_imported(tmp_path):
    program = f"BLOCKED = {BLOCKED!r}\n{textwrap.dedent(PROGRAM)}"

    done = python("-W", "error", "-c", program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert '"status":"ok"' in done.stdout


def test_importing_parley_is_quick_and_light():
    program = (
        "import parley, sys; print([m for m in ('numpy', 'torch', 'uvicorn') if m in sys.modules])"
    )

    done = python("-c", program)

    assert done.stdout.strip() == "[]"
