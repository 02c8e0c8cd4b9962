"""Every setting, its default and its meaning, once.

One frozen tree and one loader with one order: defaults < TOML file < environment (`PARLEY_…`,
nesting by `__`) < flags. Nothing else reads the environment. Unknown keys in a file are reported,
not fatal. Parts receive the values they need, never this tree. `docs/do/settings.md` and the
command line's help are made from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """A branch of the tree: frozen, unknown keys ignored (the loader reports them)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelSettings(Part):
    """Which model, and how it is run."""

    name: str = Field("parrot", description="Model name, checkpoint folder or hub id.")
    device: str = Field(
        "auto", description="cpu, cuda, cuda:N, or auto: the first GPU if there is one."
    )
    slots: int | Literal["auto"] = Field(
        1,
        description="Conversations at once on one device; auto fills the memory left.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto follows the checkpoint."
    )
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        "auto", description="Attention kernel of the language model."
    )
    compile: bool = Field(
        False, description="Compile and capture steps on a GPU; longer start, faster units."
    )
    quantize: Literal["none", "int8", "int4"] = Field(
        "none", description="Weight-only quantisation on a GPU."
    )
    random_weights: bool = Field(
        False, description="Full-size model without a checkpoint, for benchmarks."
    )
    token2wav: Path | None = Field(
        None, description="Folder of the vocoder's files; default: inside the checkpoint."
    )
    default_voice: Path | None = Field(
        None, description="Reference voice used when a client brings none (WAV)."
    )


class GatewaySettings(Part):
    """Where clients meet us."""

    host: str = Field("0.0.0.0", description="Listen address.")
    port: int = Field(8006, ge=0, le=65535, description="Listen port; 0 picks a free one.")
    http: bool = Field(
        False,
        description="Plain HTTP instead of HTTPS (no microphone in browsers except on localhost).",
    )
    ssl_certfile: Path = Field(
        Path("certs/cert.pem"), description="Certificate; made on first start if absent."
    )
    ssl_keyfile: Path = Field(
        Path("certs/key.pem"), description="Private key; made on first start if absent."
    )
    lang: Literal["zh", "en"] | None = Field(None, description="Language the pages start in.")
    playback_delay_ms: int = Field(
        200, ge=0, le=2000, description="Playback delay advertised to pages."
    )


class QueueSettings(Part):
    """Waiting."""

    max_size: int = Field(1000, ge=1, description="Waiting tickets, running work excluded.")
    update_every_s: float = Field(
        3.0, gt=0, description="A waiting client hears at least this often."
    )
    request_timeout_s: float = Field(300.0, gt=0, description="POST /api/chat gives up after this.")
    no_worker_refuse_s: float = Field(
        60.0, gt=0, description="Refuse newcomers when no worker lived for this long."
    )


class EtaSettings(Part):
    """Waiting-time estimates: baselines until enough has been seen."""

    chat_s: float = Field(15.0, gt=0)
    half_duplex_s: float = Field(180.0, gt=0)
    audio_duplex_s: float = Field(120.0, gt=0)
    omni_duplex_s: float = Field(90.0, gt=0)
    ema_alpha: float = Field(0.3, gt=0, le=1)
    ema_min_samples: int = Field(3, ge=1)


class LimitSettings(Part):
    """How long, how large, how many."""

    realtime_video_s: float = Field(
        300.0, gt=0, description="Total length of a realtime video session."
    )
    realtime_audio_s: float = Field(
        600.0, gt=0, description="Total length of a realtime audio session."
    )
    realtime_counts_queue: bool = Field(True, description="The realtime limit counts waiting too.")
    duplex_session_s: float = Field(1800.0, gt=0)
    duplex_silence_s: float = Field(
        120.0, gt=0, description="Active duplex session without audio ends."
    )
    half_duplex_session_s: float = Field(1800.0, gt=0)
    pause_s: float = Field(
        60.0, gt=0, description="How long a duplex session may stay paused by default."
    )
    setup_s: float = Field(
        30.0, gt=0, description="From queue_done to a valid prepare / session.update."
    )
    chat_first_message_s: float = Field(30.0, gt=0)
    chat_frame_mb: float = Field(128.0, gt=0)
    frame_mb: float = Field(16.0, gt=0)
    output_mb: float = Field(
        8.0, gt=0, description="A client with more unread output is disconnected."
    )
    output_stall_s: float = Field(
        10.0, gt=0, description="A client that reads nothing this long is disconnected."
    )
    sessions_per_client: int = Field(32, ge=1, description="Sessions and tickets per address.")
    reference_audio_s: float = Field(60.0, gt=0)
    mailbox_units: int = Field(2, ge=1, description="Pending duplex units; the oldest is dropped.")


class SecuritySettings(Part):
    """Who may do what."""

    admin_token: str | None = Field(
        None, description="Needed for admin routes; unset: loopback only."
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="Extra page origins that may open sessions; * for all."
    )
    worker_secret: str | None = Field(
        None, description="Shared by gateway and workers; needed off loopback."
    )
    trust_proxy: bool = Field(False, description="Take client addresses from X-Forwarded-For.")


class WorkerSettings(Part):
    """One process, one device."""

    gateway_url: str = Field(
        "http://127.0.0.1:8006", description="Gateway whose control socket to dial."
    )
    host: str = Field(
        "127.0.0.1", description="Listen address for the gateway; not loopback needs a secret."
    )
    port: int = Field(0, ge=0, le=65535, description="Listen port; 0 picks a free one.")
    advertise_url: str | None = Field(
        None, description="How the gateway reaches this worker, if not host:port."
    )
    index: int = Field(0, ge=0)
    vad: Literal["silero", "energy"] = Field("silero", description="Voice detector.")
    cleanup_limit_s: float = Field(
        10.0, gt=0, description="How long an ending session may hold the model."
    )


class StorageSettings(Part):
    """What stays on disk."""

    data_dir: Path = Field(Path("data"), description="Sessions, voices, state.")
    recording: bool = Field(True, description="Record sessions.")
    retention_days: int = Field(-1, ge=-1, description="-1 keeps for ever.")
    max_gb: float = Field(-1, ge=-1, description="-1: no cap.")
    min_free_gb: float = Field(1.0, ge=0, description="Record nothing when less is free.")


class LogSettings(Part):
    """What is said about what happens."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: text on a terminal, else JSON lines."
    )


class Settings(Part):
    """The whole tree."""

    model: ModelSettings = ModelSettings()
    gateway: GatewaySettings = GatewaySettings()
    queue: QueueSettings = QueueSettings()
    eta: EtaSettings = EtaSettings()
    limits: LimitSettings = LimitSettings()
    security: SecuritySettings = SecuritySettings()
    worker: WorkerSettings = WorkerSettings()
    workers: int = Field(
        0, ge=0, description="Workers to start with serve; 0: one per GPU, or one on CPU."
    )
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()
