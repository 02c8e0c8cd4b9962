"""`parley doctor`: shows what works on this machine, what does not, and how to fix it.

Every check is a function that returns findings; none changes anything. If something essential is
broken, the exit code is 1; something optional that is missing, such as a microphone, does not
count.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import json
import os
import platform
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.text import Text

from parley import __version__
from parley.cli import flags
from parley.cli.colour import paint, say
from parley.client import sync
from parley.errors import ParleyError, SetupError
from parley.gateway.tls import ShownPair, check_key, invalid_today
from parley.installation import install_command
from parley.recording.layout import GB, free_bytes
from parley.session_log.places import open_session_logs
from parley.session_log.redis_logs import RedisScripts, RedisSessionLogs, reason_of
from parley.settings import GatewaySettings, Settings

Grade = Literal["fine", "note", "broken"]
SIGNS: Final[dict[Grade, tuple[str, str]]] = {
    "fine": ("ok", "green"),
    "note": ("note", "yellow"),
    "broken": ("broken", "red"),
}
GIB: Final = 1024**3
PORT_ANSWER_S: Final = 2.0
"""Time limit for an answer of a server at a port that is in use."""
STORE: Final = "return redis.call('set', KEYS[1], '', 'px', 1)"
CERTIFICATE_SOON_DAYS: Final = 30
RENEW: Final = "Replace it, or remove certificate and key to have a new pair made."


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. `advice` says what to do if it is not fine."""

    grade: Grade
    subject: str
    text: str
    advice: str = ""


fine, note, broken = (functools.partial(Finding, grade) for grade in SIGNS)

Check = Callable[[Settings], Iterator[Finding]]


@flags.sets(
    "model.name", "model.random_weights", "model.llm", "model.llm_model", "model.asr", "model.tts"
)
def doctor(
    read: flags.Reader,
    tries: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Also build and check the fast parts of MiniCPM-o on this machine's card; needs "
            "1 GiB of its memory, but no checkpoint.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: Python, devices, ports, certificates, disk, model, voice detector.

    With --model or --random-weights, also plan the memory of that model. Exit code 1 when something
    essential is broken.
    """
    if not as_json:
        typer.echo(f"parley {__version__}")
    findings: list[Finding] = []
    for finding in _findings(read, (*CHECKS, check_fast_parts) if tries else CHECKS):
        findings.append(finding)
        if not as_json:
            _print(finding)
    count = Counter(finding.grade for finding in findings)
    if as_json:
        shown = [asdict(finding) for finding in findings]
        whole = {"version": __version__, "ready": not count["broken"], "findings": shown}
        typer.echo(json.dumps(whole, ensure_ascii=False, indent=1))
    elif count["broken"]:
        say(f"{count['broken']} broken, {count['note']} to note", "red")
    else:
        say("ready" + (f", {count['note']} to note" if count["note"] else ""), "green")
    if count["broken"]:
        raise typer.Exit(1)


def _findings(read: flags.Reader, checks: Sequence[Check]) -> Iterator[Finding]:
    found: list[Finding] = []
    try:
        settings = read(warn=lambda text: found.append(note("settings", text, "Correct it.")))
    except SetupError as error:
        checks = ()
        found.append(broken("settings", str(error), error.hint))
    yield from found
    for check in checks:
        yield from _run(check, settings)


def _run(check: Check, settings: Settings) -> Iterator[Finding]:
    subject = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        yield from check(settings)
    except SetupError as error:
        yield broken(subject, str(error), error.hint)
    except ModuleNotFoundError as error:
        yield note(subject, f"cannot be checked without '{error.name}'", install_command("worker"))


def _print(finding: Finding) -> None:
    word, colour = SIGNS[finding.grade]
    paint(Text.assemble((f"{word:>6}", colour), f"  {finding.subject}: {finding.text}"))
    if finding.advice:
        typer.echo(f"        {finding.advice}")


# ---- checks --------------------------------------------------------------------------------


def check_python(settings: Settings) -> Iterator[Finding]:
    """Check the interpreter; unsupported versions cannot run this file."""
    version = platform.python_version()
    yield fine("python", f"{version} on {platform.system()} {platform.machine()}")


def check_torch(settings: Settings) -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield note(
            "torch",
            "not installed; this machine can be a gateway or a client, but no worker",
            f"For a worker: {install_command('worker')}",
        )
        return
    import torch

    yield fine("torch", torch.__version__)
    if not torch.cuda.is_available():
        threads = torch.get_num_threads()
        grade: Grade = "broken" if settings.model.device.startswith("cuda") else "note"
        yield Finding(
            grade,
            "devices",
            f"no GPU that torch can use; CPU with {threads} threads",
            "Fine for small models. Otherwise check the driver and that torch was built for it.",
        )
        return
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        free, total = torch.cuda.mem_get_info(index)
        text = f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        yield fine(f"cuda:{index}", text)


def check_ports(settings: Settings) -> Iterator[Finding]:
    gateway = settings.gateway
    if gateway.port == 0:
        yield fine("port", "a free one is picked at start")
        return
    # Here, because it imports the web server.
    from parley.transport import listen

    try:
        listen(gateway.host, gateway.port).close()
    except SetupError as error:
        if _parley_answers(gateway):
            yield fine("port", f"{gateway.port} is held by a running parley server, which answers")
        else:
            yield broken("port", str(error), error.hint)
        return
    yield fine("port", f"{gateway.host}:{gateway.port} is free")


def _parley_answers(gateway: GatewaySettings) -> bool:
    """True if the port is in use by a healthy parley gateway."""
    try:
        # This asks the local server; its certificate is checked below, by name.
        with sync.connect(
            gateway.url(gateway.port), insecure=True, open_timeout_s=PORT_ANSWER_S
        ) as server:
            return bool(server.call(lambda each: each.health()).get("healthy"))
    except ParleyError:
        return False


def check_certificate(settings: Settings) -> Iterator[Finding]:
    """Check the certificate: browsers allow the microphone on secure pages only."""
    gateway = settings.gateway
    if gateway.http:
        yield note("certificate", "not used (--http)", "Browsers then refuse the microphone.")
        return
    cert, key = gateway.ssl_certfile, gateway.ssl_keyfile
    if not cert.exists() and not key.exists():
        yield fine("certificate", "none yet; made on first start")
        return
    if not cert.exists() or not key.exists():
        missing = cert if key.exists() else key
        yield broken(
            "certificate",
            f"{missing} is missing, its counterpart is there",
            "Put it in place, or remove the other to have a new pair made.",
        )
        return
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & 0o077:
        yield broken(
            "private key", f"{key} has mode {mode:04o}; others can read it", f"chmod 600 {key}"
        )
    else:
        yield fine("private key", f"{key}, mode {mode:04o}")
    yield from _validity(cert, key)


def _validity(cert: Path, key: Path) -> Iterator[Finding]:
    try:
        check_key(key)
        certificate = ShownPair().load(cert, key)
    except SetupError as error:
        yield broken("certificate", str(error).removesuffix("."), error.hint)
        return
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    until = certificate.not_valid_after_utc.date().isoformat()
    if why := invalid_today(certificate):
        yield broken("certificate", f"{cert} cannot be used: {why}", RENEW)
    elif left.days < CERTIFICATE_SOON_DAYS:
        yield note("certificate", f"{cert} expires on {until}", RENEW)
    else:
        yield fine("certificate", f"{cert}, valid until {until}")


def check_disk(settings: Settings) -> Iterator[Finding]:
    storage = settings.storage
    folder = storage.data_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield broken(
            "disk",
            f"{folder} is not writable",
            "Choose another folder with the setting storage.data_dir.",
        )
        return
    free = free_bytes(folder)
    text = f"{free / GB:.1f} GB free at {storage.data_dir}"
    if storage.recording and free < storage.min_free_gb * GB:
        advice = "Free some space, or set storage.recording = false to silence this."
        yield note("disk", f"{text}; nothing will be recorded", advice)
    else:
        yield fine("disk", text)


def check_session_logs(settings: Settings) -> Iterator[Finding]:
    """Check where logs of running sessions are written, from which another worker can continue
    them."""
    stored = open_session_logs(settings)
    if not stored.name:
        yield note("session logs", "off", "A lost worker loses its sessions.")
    else:
        yield fine("session logs", stored.place)


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Check that each Redis runs, accepts the password, can store what is stored there, and drops
    nothing."""
    gateways, stored = settings.standby.redis_url, settings.storage.session_logs
    if gateways is not None:
        scripts = RedisScripts(gateways, name := "standby.redis_url")
        key = ("parley:doctor",)
        yield asyncio.run(_redis(name, scripts, lambda: scripts.run(STORE, key, limit_s=5.0)))
    if stored is not None and "://" in stored:
        session_logs = RedisSessionLogs(stored, window_s=settings.limits.resume_window_s)
        yield asyncio.run(
            _redis("storage.session_logs", session_logs.scripts, session_logs.try_out)
        )


async def _redis(
    setting: str, scripts: RedisScripts, try_out: Callable[[], Awaitable[Any]]
) -> Finding:
    try:
        await try_out()
        async with scripts.requesting(5.0) as redis:
            memory = await redis.info("memory")
    except scripts.failures as error:
        advice = (
            "Start it, or correct address, password or permissions. For rediss:// its port needs "
            "TLS and a certificate of an authority of this machine or of ?ssl_ca_certs=FILE. It "
            "needs free memory (maxmemory), and must not be a cluster or a Sentinel."
        )
        return broken("redis", f"{setting}: {reason_of(error)}", advice)
    finally:
        await scripts.close()
    policy = memory.get("maxmemory_policy", "noeviction")
    if memory.get("maxmemory") and policy != "noeviction":
        return note(
            "redis",
            f"{setting}: it drops keys when it is full ({policy})",
            "Set maxmemory-policy to noeviction, or sessions and the active gateway may be lost.",
        )
    return fine("redis", f"{setting} can be written")


def check_media(settings: Settings) -> Iterator[Finding]:
    """Check the libraries that read and write audio, pictures and video; no ffmpeg program is
    needed."""
    ours, worker = install_command(), install_command("worker")
    for name, use, grade, advice in (
        ("soundfile", "sound files", broken, ours),
        ("soxr", "rate conversion", broken, ours),
        ("PIL", "pictures", note, worker),
        ("av", "clips", note, worker),
        ("pocketsphinx", "words that interrupt", note, "pip install it, with a C compiler."),
    ):
        try:
            module = importlib.import_module(name)
        except (ImportError, OSError) as error:
            yield grade(use, f"the package '{name}' does not work: {error}", advice)
        else:
            yield fine(use, f"{name} {getattr(module, '__version__', '')}".strip())


def check_voice_detector(settings: Settings) -> Iterator[Finding]:
    """Check the voice detector, which half-duplex needs."""
    if settings.worker.vad != "silero":
        yield note("voice detector", f"{settings.worker.vad}; simple, for tests")
        return
    missing = [n for n in ("onnxruntime", "silero_vad") if importlib.util.find_spec(n) is None]
    if missing:
        yield note(
            "voice detector",
            f"{' and '.join(missing)} not installed; no half-duplex worker here",
            f'{install_command("worker")}, or set worker.vad = "energy"',
        )
        return
    silero = importlib.import_module("parley.vad.silero")
    yield fine("voice detector", f"Silero, {silero.model_path().name}")


def check_sound_devices(settings: Settings) -> Iterator[Finding]:
    """Check microphone and loudspeaker, which only `parley talk` and `parley chat` use."""
    from parley.client.devices import sound_library

    try:
        devices = sound_library().query_devices()
    except SetupError as error:
        yield note("microphone", str(error), error.hint)
        return
    inputs = sum(device["max_input_channels"] > 0 for device in devices)
    outputs = sum(device["max_output_channels"] > 0 for device in devices)
    grade: Grade = "fine" if inputs and outputs else "note"
    advice = "" if grade == "fine" else "`parley talk --file speech.wav` works without."
    yield Finding(grade, "sound devices", f"{inputs} in, {outputs} out", advice)


def check_model(settings: Settings) -> Iterator[Finding]:
    """Check which model would be loaded and whether it fits in memory."""
    from parley import models

    plan = models.describe(settings.model)
    for problem in plan.problems:
        yield broken("model", f"{plan.name}: {problem}")
    if plan.problems:
        return
    device = f" on {plan.device}" if plan.device != "none" else ""
    kind = f" in {plan.dtype}" if plan.dtype else ""
    slots = "as many slots as fit" if plan.slots is None else _counted(plan.slots, "slot")
    yield fine("model", f"{plan.name} ({plan.source}){device}{kind}, {slots}")
    if plan.weights_bytes is not None:
        text = f"{_size(plan.weights_bytes)} of weights"
        if plan.slot_bytes is not None:
            rows = plan.slots or 1
            total = plan.total_bytes or plan.weights_bytes + rows * plan.slot_bytes
            text += f", {_size(plan.slot_bytes)} per slot, {_size(total)} with "
            text += _counted(rows, "slot")
        yield fine("memory", text)
    for text in plan.notes:
        yield fine("model", text)


def check_fast_parts(settings: Settings) -> Iterator[Finding]:
    """Build and check the fast parts: kernel, graphs and others."""
    from parley.cli import fast_parts

    yield from fast_parts.try_parts(settings.model)


def _size(number_bytes: int) -> str:
    gib = number_bytes / GIB
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.0f} MiB"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


CHECKS: Final[tuple[Check, ...]] = (
    check_python,
    check_torch,
    check_model,
    check_voice_detector,
    check_media,
    check_ports,
    check_certificate,
    check_disk,
    check_session_logs,
    check_redis,
    check_sound_devices,
)
