"""Names, defaults and descriptions of all settings: one frozen tree.

Components receive the values they need, never this tree.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUseDefault


def split_list(value: Any) -> Any:
    """Split a comma-separated list from the environment or a flag."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(split_list)]


class Part(BaseModel):
    """Branch of the tree: frozen. Unknown keys are ignored here and reported by the loader. Numbers
    are finite: limits are converted to bytes, and JSON has no infinity."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _empty_is_default(cls, value: Any) -> Any:
        if value == "":  # `PARLEY_STORAGE__ASSETS_DIR=` must not name the working folder.
            raise PydanticUseDefault
        return value


class ModelBehaviour(Part):
    """Known defects of the reference implementation: true = corrected, false = reproduced.

    The last one is inverted.
    """

    listen_options_act_on_listen: bool = True
    """listen_prob_scale and listen_top_k apply to the listen token; false: to the end-of-turn
    token. Neutral at their defaults."""
    keeps_speech_before_listen: bool = True
    """A listen decision after text in the same unit ends a speaking unit; false: the unit's text
    and audio are dropped."""
    forced_listen_ends_speech: bool = True
    """Forced listening also resets the TTS state of the interrupted turn; false: the next turn
    continues it."""
    waits_for_whole_units: bool = True
    """A unit with too little audio is held back as a whole; false: its opening and images are
    prefilled before its audio."""
    counts_window_exactly: bool = True
    """The turn-based context window drops exactly the rounds it counts; false: it counts as the
    reference does and drops others."""
    hides_layout_tokens: bool = True
    """Layout tokens such as `<|listen|>` that the model generates in a turn are not part of its
    text; false: they are shown."""
    parses_typed_tags: bool = True
    """Tags such as `<image>` in user text become special tokens, as in the reference; false: they
    are plain text, which is safer with untrusted users."""

    @classmethod
    def reference(cls) -> ModelBehaviour:
        """Settings that behave as the reference implementation."""
        return cls(**{**dict.fromkeys(cls.model_fields, False), "parses_typed_tags": True})


class ModelSettings(Part):
    """The model and how it runs."""

    name: str = "pocket"
    """Model name, checkpoint folder, hub id, or llamacpp-omni:URL."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; default: the newest."""
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Seed of every session, for reproducible conversations; unset: drawn for each session."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU if there is one."""
    slots: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Concurrent sessions per device; auto takes what its memory holds and unit_limit_ms allows.
    Default: auto for the full-size model on a GPU, else 1."""
    unit_limit_ms: int = Field(400, ge=0, le=1000)
    """With automatic slots: longest time of a duplex unit in which all sessions show a picture and
    speak. It is measured at start, and slots are limited to what it allows. 0: memory alone counts,
    for chats and half-duplex only."""
    context_tokens: int = Field(8192, ge=2048, le=32_768)
    """Context of each conversation of the full-size model (147 MB of device memory per 1,000 tokens
    in bfloat16), or of the language model at the address llm: older turns are not sent to it."""
    context_share_tokens: int | None = Field(None, ge=1024, le=32_768)
    """Context guaranteed to every conversation; it grows to context_tokens while memory is left.
    Default: 3,584 if slots are counted by the card, else all of context_tokens."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto follows the checkpoint."""
    attention: Literal["auto", "triton", "sdpa"] = "auto"
    """Attention kernel; auto is triton on a GPU, else sdpa. The triton kernel is checked at start
    and replaced by sdpa if it fails."""
    strict: bool = False
    """Refuse to start, or fail the request, instead of replacing a fast part of the model that does
    not work (kernel, graphs, int4, …) with its slower form."""
    kv_cache_dtype: Literal["auto", "model", "int8"] = "auto"
    """Precision of a conversation's caches: model is the precision in which the model computes,
    int8 takes half; auto is int8 on a GPU with less than 28 GiB."""
    first_window_tokens: int = Field(25, ge=5, le=25)
    """Speech tokens, 40 ms each, that the first window of a spoken answer turns into sound; fewer
    are heard sooner. With the classic vocoder the samples are no longer the reference's."""
    compile: bool = True
    """Capture steps as CUDA graphs on a GPU: slower start, faster units. Steps that cannot be
    captured run uncaptured."""
    quantize: Literal["none", "fp8", "int8", "int4", "smallest"] = "none"
    """Quantization of the LLM's weights; fp8 needs compute capability 8.9 (RTX 40xx, L4, L40S, H100
    and newer); int8 runs on a CPU only, where it is faster than bfloat16; smallest is int4 with
    embeddings and head in 8 bits and one voice kept ready, for cards of 12 GB. AWQ checkpoints are
    int4 or smallest."""
    random_weights: bool = False
    """Full-size model without a checkpoint, for benchmarks."""
    token2wav: Path | None = None
    """Folder of the vocoder's files; default: inside the checkpoint."""
    token2wav_precision: Literal["float32", "tf32", "bfloat16"] = "tf32"
    """Arithmetic of flow and vocoder on a GPU: tf32 multiplies with shortened numbers, bfloat16
    runs the flow in 16 bits."""
    token2wav_history: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the flow's memory of a turn; auto is bfloat16 on a GPU, where it takes 0.2 GiB
    per conversation instead of 0.4."""
    token2wav_steps: int = Field(5, ge=1, le=20)
    """Euler steps of the flow for each window of speech: more take longer and sound better. The
    published demo takes 5, the published class 10; each step also remembers (0.04 GiB per
    conversation)."""
    token2wav_steps_offline: int | None = Field(None, ge=1, le=20)
    """The same for chat answers in one piece (streaming: false), which are heard only once they are
    complete; default: 10, or token2wav_steps where caches are in 8 bits. One such answer speaks at
    a time; 10 steps take 0.4 GiB in total."""
    default_voice: Path | None = None
    """Reference voice (WAV) for clients that send none."""
    llm: str = "own"
    """Language model of --model cascade: own, the address of an OpenAI-compatible API
    (http://localhost:11434/v1), a folder, or a hub id."""
    llm_model: str = ""
    """Name of the model at that address."""
    llm_key: str = ""
    """API key for that address."""
    llm_timeout_s: float = Field(20.0, gt=0)
    """Longest wait for the next text from that address."""
    llm_images: bool = False
    """The model at that address accepts images."""
    llm_extra: str = ""
    """Additional fields of each request to that address as a JSON object, such as
    {"chat_template_kwargs": {"enable_thinking": false}}; null removes a field."""
    llm_early: bool | None = None
    """Start an answer at each pause of the user, before it is known whether they have finished:
    heard up to half a second sooner, but each pause is one more request, at most eight in one
    utterance and one more for every four seconds of it. Default: not where that address has a
    public name, since its requests are likely to be paid for."""
    asr: str = "own"
    """Speech recogniser of --model cascade: own, or a Whisper (folder or hub id; with
    faster-whisper installed, a folder in CTranslate2's form too)."""
    tts: str = "own"
    """Voice of --model cascade: own, the address of an OpenAI-compatible API with /audio/speech, or
    the ONNX file of a Piper voice or of Kokoro, with that installed."""
    parts: Path | None = None
    """Folder of the components of --model cascade; default: the installed package
    parley-pocket-data."""
    tts_model: str = "tts-1"
    """Name of the voice model at that address."""
    tts_voice: str = "alloy"
    """Name of the voice at that address, or of Kokoro's."""
    tts_key: str = ""
    """API key for that address; default: llm_key if llm has the same host and port."""
    tts_timeout_s: float = Field(5.0, gt=0)
    """Longest wait for the next audio from that address; then the bundled voice speaks."""
    behaviour: ModelBehaviour = ModelBehaviour()

    @field_validator("llm_key", "tts_key")
    @classmethod
    def _is_sendable(cls, value: str) -> str:
        """A key is a header's value; files and secrets often end with a line break."""
        value = value.strip()
        if not (value.isascii() and value.isprintable()):
            raise ValueError("expected printable ASCII characters")
        return value

    @field_validator("llm_extra")
    @classmethod
    def _is_object(cls, value: str) -> str:
        _json_object(value)
        return value

    @property
    def llm_fields(self) -> dict[str, Any]:
        """`llm_extra` as a dictionary."""
        return _json_object(self.llm_extra)

    @property
    def public_name(self) -> str:
        """Name of the model for clients, without the folder it lies in. Only of "pocket" the pages
        say that nothing of a conversation leaves the server, and what it can do."""
        if self.name not in ("pocket", "cascade"):
            return Path(self.name).name
        return "pocket" if self.llm == self.asr == self.tts == "own" else "cascade"


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"expected a JSON object, got {text[:40]!r} ({error})") from error
    if not isinstance(value, dict):
        # Pydantic accepts only these from a validator.
        raise ValueError(f"expected a JSON object, got {text[:40]!r}")  # noqa: TRY004
    return value


class GatewaySettings(Part):
    """Address, certificate and pages of the gateway."""

    host: str = "0.0.0.0"
    """Listen address; `::` accepts IPv6 and IPv4."""
    port: int = Field(8006, ge=0, le=65535)
    """Listen port; 0 picks a free one."""
    http: bool = False
    """Plain HTTP instead of HTTPS (no microphone in browsers except on localhost)."""
    ssl_certfile: Path = Path("certs/cert.pem")
    """Certificate; created on first start if missing."""
    ssl_keyfile: Path = Path("certs/key.pem")
    """Private key; created on first start if missing."""
    drain_timeout_s: float = Field(0.0, ge=0)
    """On SIGTERM, running sessions may continue for this long; new ones are refused. A separate
    gateway does not wait for sessions that can be resumed at the next gateway."""
    lang: Literal["zh", "en"] | None = None
    """Initial language of the pages."""
    playback_delay_ms: int = Field(200, ge=0, le=2000)
    """Playback delay advertised to pages."""
    api_hosts: Words = ()
    """Other hosts that pages may call with ?api=, with port if any."""

    def url(self, port: int) -> str:
        """Its address for programs on this machine."""
        host = "localhost" if self.host in ("0.0.0.0", "::", "") else self.host
        name = f"[{host}]" if ":" in host else host
        return f"{'http' if self.http else 'https'}://{name}:{port}"


class StandbySettings(Part):
    """Several gateways, of which one is active and the others replace it when it fails."""

    redis_url: str | None = None
    """Redis or Valkey in which the gateways agree on the active one: redis://host:6379/0,
    rediss://… with TLS. Unset: this gateway is the only one."""
    key: str = "parley:gateway"
    """Redis key; one of the gateways that share it is active."""
    name: str | None = None
    """Name of this gateway in logs and /ready; default: the host name."""
    ttl_s: float = Field(4.0, ge=0.5, le=60)
    """Time after which another gateway replaces one that stopped responding."""


class QueueSettings(Part):
    """Queue of waiting clients."""

    max_size: int = Field(1000, ge=1)
    """Maximum number of waiting clients."""
    update_every_s: float = Field(3.0, gt=0)
    """Longest interval between updates to a waiting client."""
    request_timeout_s: float = Field(300.0, gt=0)
    """Time limit of an answer over HTTP, in the queue and after: POST /api/chat and what is below
    /v1/."""
    no_worker_refuse_s: float = Field(60.0, gt=0)
    """Refuse new clients after this long without a worker."""


class EtaSettings(Part):
    """Waiting-time estimates: baselines until enough sessions were measured."""

    chat_s: float = Field(15.0, gt=0)
    """Baseline of a chat request."""
    half_duplex_s: float = Field(180.0, gt=0)
    """Baseline of a half-duplex session."""
    audio_duplex_s: float = Field(120.0, gt=0)
    """Baseline of an audio-only duplex session."""
    omni_duplex_s: float = Field(90.0, gt=0)
    """Baseline of a duplex session with video."""
    ema_alpha: float = Field(0.3, gt=0, le=1)
    """Weight of the newest session in the average."""
    ema_min_samples: int = Field(3, ge=1)
    """Sessions measured before the average replaces the baseline."""


class LimitSettings(Part):
    """Limits on duration, size and number."""

    realtime_video_s: float = Field(300.0, gt=0)
    """Total length of a realtime video session."""
    realtime_audio_s: float = Field(600.0, gt=0)
    """Total length of a realtime audio session."""
    realtime_counts_queue: bool = True
    """The realtime limit includes time in the queue."""
    duplex_session_s: float = Field(1800.0, gt=0)
    """Total length of a duplex session."""
    duplex_silence_s: float = Field(120.0, gt=0)
    """An active duplex session without audio ends after this."""
    half_duplex_session_s: float = Field(1800.0, gt=0)
    """Total length of a half-duplex session."""
    pause_s: float = Field(60.0, gt=0)
    """Default limit of a pause in a duplex session."""
    setup_s: float = Field(30.0, gt=0)
    """Time from queue_done to the start of a valid prepare or session.update."""
    chat_first_message_s: float = Field(30.0, gt=0)
    """Time from connecting to the start of the request of a chat."""
    chat_idle_s: float = Field(180.0, gt=0)
    """A connection for several chats ends after this without one."""
    chat_frame_mb: float = Field(128.0, gt=0)
    """Largest chat request, in MiB."""
    frame_mb: float = Field(16.0, gt=0)
    """Largest message of the other dialects, in MiB."""
    output_mb: float = Field(8.0, gt=0)
    """Clients with more unread output are disconnected, in MiB."""
    output_stall_s: float = Field(30.0, gt=0)
    """Clients that read nothing for this long are disconnected."""
    resume_window_s: float = Field(30.0, ge=0, le=600)
    """A session whose client was cut off keeps its slot for this long, if the client requested it;
    0: no session does."""
    resume_journal_mb: float = Field(8.0, gt=0)
    """Maximum output stored for a client that may have to receive it again."""
    resume_journal_s: float = Field(60.0, gt=0)
    """Age after which stored output counts as received."""
    rollover: bool = False
    """Sessions whose client requested resuming have no maximum length and never a full context: the
    oldest part of a duplex context is forgotten, as in half-duplex."""
    session_log_mb: float = Field(64.0, ge=0)
    """Maximum size of the log of one session whose client requested resuming. Another worker can
    continue the session from it: it contains pictures, results and, if the model does not report
    its choices, the audio (2 MB a minute). A session beyond the limit continues without a log and
    ends with its worker. 0: no session is logged."""
    rebuild_wait_s: float = Field(900.0, ge=0)
    """Time for which a session of a lost worker waits for a slot while a worker is loading that
    could continue it; otherwise resume_window_s."""
    session_logs_mb: float = Field(1024.0, ge=0)
    """Maximum size of all logs together; beyond it, and beyond half of their disk or memory, the
    largest are dropped."""
    sessions_per_client: int = Field(32, ge=1)
    """Sessions and tickets per address."""
    connections_per_client: int = Field(256, ge=1)
    """Open connections per address, and new ones in 8 s; at least twice sessions_per_client. Not
    applied with trust_proxy."""
    messages_per_s: float = Field(200.0, gt=0)
    """Sustained rate of messages below 16 KiB per connection, with bursts up to 3000. Beyond it the
    connection is closed with 1008."""
    voices_per_client: int = Field(20, ge=1)
    """Registered voices per key, or per address without a key."""
    reference_audio_s: float = Field(60.0, gt=0)
    """Longest reference voice."""
    mailbox_units: int = Field(2, ge=1)
    """Pending duplex units; the oldest is dropped."""
    decoders: int = Field(1, ge=0)
    """Processes in which a worker or gateway decodes video, and as many for large images and audio;
    0: decode in the process itself, with checks only."""
    decoder_mb: int = Field(1024, ge=64)
    """Memory limit for decoding one file, in MiB."""
    decode_s: float = Field(20.0, gt=0)
    """Processor time for decoding one video, in seconds; an image or audio file gets half. In real
    time it may take three times as long."""


class SecuritySettings(Part):
    """Access control."""

    admin_token: str | None = None
    """Token for admin routes; unset: programs of the server's user on its machine only."""
    needs_key: bool = False
    """Require an API key for sessions and data."""
    anonymous_per_minute: int = Field(600, ge=0)
    """Requests and connections per minute and address without a key, except page files and loopback
    clients; 0: no limit."""
    allowed_origins: Words = ()
    """Additional page origins that may open sessions; * for all."""
    allowed_hosts: Words = ()
    """Public DNS names of this server that are not in its certificate; * stands for any part.
    Addresses and local names need no entry."""
    worker_secret: str | None = None
    """Secret shared by gateway and workers; required unless they use loopback as one user."""
    trust_proxy: bool = False
    """Read client addresses from X-Forwarded-For, and from X-Forwarded-Proto whether they come by
    TLS."""
    fetch_urls: bool = False
    """Fetch pictures and clips that chat completions and responses name by http(s) address; never
    from private networks."""


class ForwardAuthSettings(Part):
    """Users that a proxy in front of the gateway has signed in, e.g. by OIDC."""

    user_header: str | None = None
    """Header with the user's name, set by the proxy, e.g. X-Auth-Request-Email (oauth2-proxy),
    Remote-User (Authelia). Unset: no such proxy."""
    groups_header: str | None = None
    """Header with the user's groups, comma-separated."""
    proxies: Words = ("127.0.0.1", "::1")
    """Addresses or networks whose headers are trusted."""
    admin_groups: Words = ()
    """Groups whose members are admins."""
    operate_groups: Words = ()
    """Groups whose members have the role operate."""
    max_sessions: int = Field(8, ge=1)
    """Concurrent sessions and tickets per user."""
    per_minute: int = Field(120, ge=1)
    """Requests and new sessions per user and minute."""
    minutes_per_day: int | None = Field(None, ge=1)
    """Minutes of sessions per user and day."""
    tokens_per_day: int | None = Field(None, ge=1)
    """Generated tokens per user and day."""


class WorkerSettings(Part):
    """Worker process: one device, one engine."""

    gateway_url: str = "http://127.0.0.1:8006"
    """Gateway to connect to; several, of which one is active: comma-separated."""
    gateway_fingerprint: str | None = None
    """SHA-256 fingerprint of the gateway's certificate, which it prints at its start; then no other
    certificate is accepted. Several: comma-separated."""
    gateway_ca: Path | None = None
    """Certificate (PEM) of the gateway or of the authority that signed it. Default:
    gateway.ssl_certfile if that exists, else the authorities of this machine."""
    host: str = "127.0.0.1"
    """Listen address for the gateway; a secret is required off loopback."""
    port: int | None = Field(None, ge=0, le=65535)
    """Listen port; 0 picks a free one. Default: 8007 + worker.index, on loopback any free one."""
    http: bool | None = None
    """Plain HTTP between gateway and worker instead of TLS with a certificate that the worker makes
    at its start. Default: on loopback only."""
    advertise_url: str | None = None
    """Address at which the gateway reaches this worker, if not host:port."""
    drain_timeout_s: float = Field(0.0, ge=0)
    """On SIGTERM, running conversations of this worker may continue for this long."""
    index: int = Field(0, ge=0)
    """Number of this worker on its machine."""
    vad: Literal["silero", "energy"] = "silero"
    """Voice activity detector."""
    end_of_turn: str = "model"
    """How the server decides that the user has finished, unless the client sets a silence: `model`
    (the network included in parley, which judges the sound of the turn), `silence`, or the path of
    an ONNX file with Smart Turn's inputs and outputs."""
    interruption_words: bool = True
    """Recognise words that interrupt an answer if `backchannel` is `words`. Off: `words` works like
    `ignore`."""
    cleanup_limit_s: float = Field(10.0, gt=0)
    """Time within which an ended session must release its slot, else its worker restarts; six times
    as long while the model is busy."""
    heartbeat_limit_s: float = Field(60.0, gt=5)
    """`parley serve` replaces a worker without a heartbeat for this long."""
    loading_limit_s: float = Field(1800.0, gt=0)
    """`parley serve` restarts a worker that is loading and makes no progress for this long."""
    step_limit_s: float | None = Field(None, gt=0)
    """A worker exits if one model step takes longer, because its device hangs. Default: 60 on a
    GPU, 600 on a CPU."""


class StorageSettings(Part):
    """Data on disk."""

    data_dir: Path = Path("data")
    """Folder of recordings, voices and state."""
    assets_dir: Path | None = None
    """Folder of reference voices (WAV) that clients may name in `ref_audio_path` by their path
    below it, e.g. `assets/ref_audio/name.wav`; unset: none."""
    recording: bool = True
    """Record sessions."""
    exact_inputs: bool = True
    """Also record audio exactly as the model received it (64 KB per second). `parley rerun` needs
    it for duplex and half-duplex sessions; it cannot be added later, so only a server short of disk
    should turn it off."""
    retention_days: int = Field(-1, ge=-1)
    """Age at which recordings are deleted; -1: never."""
    max_gb: float = Field(-1, ge=-1)
    """Size above which the oldest recordings of the key with most are deleted; -1: no limit."""
    min_free_gb: float = Field(1.0, ge=0)
    """Do not record with less free disk space."""
    replays: bool = True
    """Render every recording when its session ends."""
    session_logs: str | None = None
    """Where running sessions are logged so that another worker can continue them: a folder that
    gateway and workers of this host share, rediss://host:6379/0 for several hosts (redis:// only on
    this host), or off. Unset: standby.redis_url if that is set and encrypted or local, else a
    folder in memory. Every log is removed when its session ends."""


class LogSettings(Part):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    format: Literal["auto", "json", "text"] = "auto"
    """auto: text on a terminal, else JSON lines."""
    access: bool = False
    """Log every HTTP request and WebSocket with the client's address and key, except requests of
    /health, /ready and /metrics."""
    client_traces: bool = False
    """Store the microphone reports of pages (record_trace.jsonl, 5 MB)."""


class TraceSettings(Part):
    """OpenTelemetry traces; off without an endpoint."""

    otlp_endpoint: str | None = None
    """Where gateway and workers send traces (OTLP over HTTP), e.g. http://collector:4318/v1/traces.
    Needs the extra 'otel'."""
    sample: float = Field(1.0, ge=0, le=1)
    """Share of sessions that are traced."""


class RaySettings(Part):
    """Workers on a Ray cluster (`executor = "ray"`)."""

    address: str = "auto"
    """Address of the cluster: host:port, auto (the one this machine belongs to), or local (start
    one on this machine)."""
    cluster: str = Field("default", pattern=r"^[A-Za-z0-9_-]{1,40}$")
    """Distinguishes several servers in one Ray cluster."""
    gpus_per_worker: float | None = Field(None, ge=0)
    """GPUs of each worker. Default: 1 if the cluster has GPUs at the start or workers_max is above
    workers, else 0."""
    workers_max: int | None = Field(None, ge=1)
    """Maximum number of workers while clients are waiting; default: always as many as `workers`."""
    scale_up_after_s: float = Field(10.0, ge=0)
    """Seconds a client has waited before more workers are requested."""
    scale_down_after_s: float = Field(600.0, ge=0)
    """Seconds for which fewer workers must be enough before one is removed."""
    gateway_url: str | None = None
    """Address at which the nodes reach the gateway; default: this machine's in the cluster."""


class Settings(Part):
    """All settings."""

    model: ModelSettings = ModelSettings()
    gateway: GatewaySettings = GatewaySettings()
    standby: StandbySettings = StandbySettings()
    queue: QueueSettings = QueueSettings()
    eta: EtaSettings = EtaSettings()
    limits: LimitSettings = LimitSettings()
    security: SecuritySettings = SecuritySettings()
    forward_auth: ForwardAuthSettings = ForwardAuthSettings()
    worker: WorkerSettings = WorkerSettings()
    workers: int = Field(0, ge=0)
    """Workers to start with serve; 0: one per GPU, or one on CPU."""
    executor: Literal["local", "ray"] = "local"
    """Where serve starts workers: on this machine, or on a Ray cluster."""
    ray: RaySettings = RaySettings()
    storage: StorageSettings = StorageSettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()


def leaves(part: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting as a dotted name with its field."""
    for name, field in part.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def values(settings: Settings) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return {name: operator.attrgetter(name)(settings) for name, _ in leaves()}


def shown_default(field: FieldInfo) -> str:
    """A default as the settings page and error messages show it."""
    default = field.default
    match default:
        case None:
            return "none"
        case bool():
            return f"`{str(default).lower()}`"
        case () | "":
            return "none"
        case tuple():
            return f"`{','.join(default)}`"
        case float() if default.is_integer():
            return f"`{int(default)}`"
        case _:
            return f"`{default}`"
