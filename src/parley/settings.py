"""Every setting, its default and its meaning, once.

One frozen tree and one loader with one order: defaults < TOML file < environment (`PARLEY_…`,
nesting by `__`) < flags. Nothing else reads the environment. Unknown keys are reported, not fatal.
Parts receive the values they need, never this tree. `docs/do/settings.md` and the command line's
help are made from it:

    python -m parley.settings            write docs/do/settings.md
    python -m parley.settings --check    exit 1 when it is not current
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from parley.errors import SetupError

ENV_PREFIX: Final = "PARLEY_"
DEFAULT_FILE: Final = Path("parley.toml")
_SECRETS: Final = frozenset({"security.admin_token", "security.worker_secret"})


class Part(BaseModel):
    """A branch of the tree: frozen, unknown keys ignored (the loader reports them)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ModelBehaviour(Part):
    """Where the published program is plainly wrong: whether we are right, or the same.

    Every switch is ours when on and the published program's when off, except the last one.
    """

    listen_options_act_on_listen: bool = Field(
        True,
        description="listen_prob_scale and listen_top_k act on the listen token; else on the end "
        "of a message. Neutral at their defaults.",
    )
    keeps_speech_before_listen: bool = Field(
        True,
        description="A decision to listen after words in the same unit ends a speaking unit; else "
        "the unit's words and sound are dropped.",
    )
    forced_listen_ends_speech: bool = Field(
        True,
        description="Forced listening forgets the interrupted turn of the voice, too; else the "
        "next turn continues it.",
    )
    waits_for_whole_units: bool = Field(
        True,
        description="A unit with too little sound feeds nothing and keeps the sound; else its "
        "opening and pictures are fed already.",
    )
    counts_window_exactly: bool = Field(
        True,
        description="The turn-based window drops the rounds that it counts; else it counts as "
        "published and drops others.",
    )
    parses_typed_tags: bool = Field(
        True,
        description="Tags such as `<image>` in a person's text become tokens, as published; else "
        "they are words, which is safer where texts come from strangers.",
    )

    @classmethod
    def reference(cls) -> ModelBehaviour:
        """As the published program."""
        return cls(
            listen_options_act_on_listen=False,
            keeps_speech_before_listen=False,
            forced_listen_ends_speech=False,
            waits_for_whole_units=False,
            counts_window_exactly=False,
            parses_typed_tags=True,
        )


class ModelSettings(Part):
    """Which model, and how it is run."""

    name: str = Field("pocket", description="Model name, checkpoint folder or hub id.")
    device: str = Field(
        "auto", description="cpu, cuda, cuda:N, or auto: the first GPU if there is one."
    )
    slots: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        1,
        description="Conversations at once on one device; auto fills the memory left.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto follows the checkpoint."
    )
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        "auto",
        description="Attention kernel of the language model; auto is sdpa. flash_attention_2 "
        "needs the package flash-attn and a GPU.",
    )
    compile: bool = Field(
        True,
        description="Capture steps as CUDA graphs on a GPU: longer start, faster units. A step "
        "that cannot be captured runs as it is.",
    )
    quantize: Literal["none", "int8", "int4"] = Field(
        "none",
        description="Weights of the language model's layers, through the extra `quantize`; int4 "
        "on a GPU only.",
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
    behaviour: ModelBehaviour = ModelBehaviour()


def split_list(value: Any) -> Any:
    """The environment and flags write a list with commas."""
    if isinstance(value, str):
        return tuple(each.strip() for each in value.split(",") if each.strip())
    return value


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
    api_hosts: tuple[str, ...] = Field(
        (), description="Hosts besides this one that pages may call with ?api=, with port if any."
    )

    @field_validator("api_hosts", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)


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

    chat_s: float = Field(15.0, gt=0, description="Baseline of a chat request.")
    half_duplex_s: float = Field(180.0, gt=0, description="Baseline of a half-duplex session.")
    audio_duplex_s: float = Field(
        120.0, gt=0, description="Baseline of a duplex session with sound alone."
    )
    omni_duplex_s: float = Field(90.0, gt=0, description="Baseline of a duplex session with video.")
    ema_alpha: float = Field(
        0.3, gt=0, le=1, description="Weight of the newest session in the average."
    )
    ema_min_samples: int = Field(
        3, ge=1, description="Sessions seen before the average replaces the baseline."
    )


class LimitSettings(Part):
    """How long, how large, how many."""

    realtime_video_s: float = Field(
        300.0, gt=0, description="Total length of a realtime video session."
    )
    realtime_audio_s: float = Field(
        600.0, gt=0, description="Total length of a realtime audio session."
    )
    realtime_counts_queue: bool = Field(True, description="The realtime limit counts waiting too.")
    duplex_session_s: float = Field(1800.0, gt=0, description="Total length of a duplex session.")
    duplex_silence_s: float = Field(
        120.0, gt=0, description="Active duplex session without audio ends."
    )
    half_duplex_session_s: float = Field(
        1800.0, gt=0, description="Total length of a half-duplex session."
    )
    pause_s: float = Field(
        60.0, gt=0, description="How long a duplex session may stay paused by default."
    )
    setup_s: float = Field(
        30.0, gt=0, description="From queue_done to a valid prepare / session.update."
    )
    chat_first_message_s: float = Field(
        30.0, gt=0, description="How long a chat connection may stay without its request."
    )
    chat_frame_mb: float = Field(128.0, gt=0, description="Largest chat request, in MiB.")
    frame_mb: float = Field(
        16.0, gt=0, description="Largest message of the other dialects, in MiB."
    )
    output_mb: float = Field(
        8.0, gt=0, description="A client with more unread output is disconnected."
    )
    output_stall_s: float = Field(
        10.0, gt=0, description="A client that reads nothing this long is disconnected."
    )
    sessions_per_client: int = Field(32, ge=1, description="Sessions and tickets per address.")
    reference_audio_s: float = Field(60.0, gt=0, description="Longest reference voice.")
    mailbox_units: int = Field(2, ge=1, description="Pending duplex units; the oldest is dropped.")


class SecuritySettings(Part):
    """Who may do what."""

    admin_token: str | None = Field(
        None, description="Needed for admin routes; unset: loopback only."
    )
    needs_key: bool = Field(
        False, description="Conversations and data only for callers with an API key."
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="Extra page origins that may open sessions; * for all."
    )
    worker_secret: str | None = Field(
        None, description="Shared by gateway and workers; needed off loopback."
    )
    trust_proxy: bool = Field(False, description="Take client addresses from X-Forwarded-For.")

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)


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
    index: int = Field(0, ge=0, description="Number of this worker on its machine.")
    vad: Literal["silero", "energy"] = Field("silero", description="Voice detector.")
    cleanup_limit_s: float = Field(
        10.0, gt=0, description="How long an ending session may hold the model."
    )


class StorageSettings(Part):
    """What stays on disk."""

    data_dir: Path = Field(Path("data"), description="Sessions, voices, state.")
    recording: bool = Field(True, description="Record sessions.")
    exact_inputs: bool = Field(
        True,
        description="Keep sound also as the model heard it, sample by sample (64 KB per second), "
        "for `parley replay`.",
    )
    retention_days: int = Field(-1, ge=-1, description="-1 keeps for ever.")
    max_gb: float = Field(-1, ge=-1, description="-1: no cap.")
    min_free_gb: float = Field(1.0, ge=0, description="Record nothing when less is free.")
    replays: bool = Field(True, description="Mix a replay of every recording when it is over.")


class LogSettings(Part):
    """What is said about what happens."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much is said."
    )
    format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: text on a terminal, else JSON lines."
    )
    client_traces: bool = Field(
        False,
        description="Keep what pages report about their microphone (record_trace.jsonl, 5 MB).",
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


# ---- loading -------------------------------------------------------------------------------

_log = logging.getLogger(__name__)


def load(
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    warn: Callable[[str], None] = _log.warning,
) -> Settings:
    """Read the settings: defaults < file < environment < flags.

    Args:
        file: a TOML file that must exist; None reads `parley.toml` in the working folder if there.
        flags: from the command line, nested or with dotted keys; None values are not given.
        warn: hears about keys that do not exist.

    Raises:
        SetupError: a file that cannot be read or a value that does not fit; the hint names the key.
    """
    path, from_file = _read_file(file)
    from_flags = _nested(flags or {})
    for name in _unknown(from_file):
        warn(f"{path}: unknown setting '{name}' is ignored{_nearest(name)}")
    for variable, name in _unknown_variables():
        warn(f"{variable}: unknown setting '{name}' is ignored{_nearest(name)}")
    try:
        read = _reader(from_file)(**from_flags)
    except ValidationError as error:
        raise _explain(error, path, from_file, from_flags) from None
    return Settings(**{name: getattr(read, name) for name in Settings.model_fields})


def _reader(from_file: dict[str, Any]) -> type[BaseSettings]:
    class Reader(Settings, BaseSettings):
        model_config = SettingsConfigDict(
            frozen=True,
            extra="ignore",
            env_prefix=ENV_PREFIX,
            env_nested_delimiter="__",
            # Lists are comma-separated text here, not JSON.
            enable_decoding=False,
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                init_settings,
                EnvSettingsSource(settings_cls),
                InitSettingsSource(settings_cls, init_kwargs=from_file),
            )

    return Reader


def _read_file(file: Path | None) -> tuple[Path, dict[str, Any]]:
    path = DEFAULT_FILE if file is None else file
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is None:
            return path, {}
        raise SetupError(
            f"The settings file {path} does not exist.",
            hint="Check the path after --config, or leave it out.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The settings file {path} cannot be read.", hint=f"{error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"The settings file {path} is not valid TOML.", hint=f"{error}") from None


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flags.items():
        if value is None:
            continue
        *folders, name = key.split(".")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        if isinstance(value, Mapping):
            branch.setdefault(name, {}).update(_nested(value))
        else:
            branch[name] = value
    return tree


def _leaves(part: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting as a dotted name with its field."""
    for name, field in part.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


_NAMES: Final = tuple(name for name, _ in _leaves())


def _unknown(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if name in _NAMES:
            continue
        if isinstance(value, Mapping) and any(each.startswith(f"{name}.") for each in _NAMES):
            yield from _unknown(value, f"{name}.")
        else:
            yield name


def _unknown_variables() -> Iterator[tuple[str, str]]:
    for variable in sorted(os.environ):
        if variable.upper().startswith(ENV_PREFIX):
            name = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
            if name not in _NAMES:
                yield variable, name


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.6)
    if not near:
        last = name.rpartition(".")[2]
        near = [each for each in _NAMES if each.rpartition(".")[2] == last][:1]
    return f"; did you mean '{near[0]}'?" if near else ""


def _explain(
    error: ValidationError, path: Path, from_file: dict[str, Any], from_flags: dict[str, Any]
) -> SetupError:
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    name = next((n for n in _NAMES if n.split(".") == parts[: n.count(".") + 1]), ".".join(parts))
    variable = ENV_PREFIX + name.upper().replace(".", "__")
    if _holds(from_flags, name):
        place, change = "on the command line", "on the command line"
    elif any(each.upper() == variable for each in os.environ):
        place, change = f"in the environment ({variable})", f"as {variable}"
    else:
        place, change = f"in {path}", f"in {path}"
    wrong = "" if name in _SECRETS else f" is {first['input']!r}"
    # A value that may be a number or a word is refused once for each.
    same = [
        e
        for e in error.errors()
        if [str(part) for part in e["loc"]][: len(name.split("."))] == name.split(".")
    ]
    reason = ", or ".join(e["msg"][:1].lower() + e["msg"][1:] for e in same or [first])
    default = dict(_leaves()).get(name)
    rest = "" if default is None else f" or leave it out for the default, {_shown(default)}"
    return SetupError(
        f"The setting {name}{wrong} {place}: {reason}.", hint=f"Change {name} {change},{rest}."
    )


def _holds(tree: Mapping[str, Any], name: str) -> bool:
    branch: Any = tree
    for part in name.split("."):
        if not isinstance(branch, Mapping) or part not in branch:
            return False
        branch = branch[part]
    return True


# ---- the page ------------------------------------------------------------------------------

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "do" / "settings.md"


def page() -> str:
    """`docs/do/settings.md`."""
    lines = [
        "# Settings",
        "",
        "<!-- Generated by `python -m parley.settings` from src/parley/settings.py. -->",
        "",
        "Every setting has a default. A file overrides it, the environment overrides the file, and",
        "a flag on the command line overrides both. The file is `parley.toml` in the working",
        "folder, or the one named by `--config`:",
        "",
        "```toml",
        "[gateway]",
        "port = 8443",
        "",
        "[model]",
        'name = "pocket"',
        "```",
        "",
        "In the environment the same is `PARLEY_GATEWAY__PORT=8443`; lists have commas.",
        "A name that does not exist is reported and otherwise ignored.",
    ]
    section = None
    for name, field in _leaves():
        folder = name.rpartition(".")[0]
        if folder != section:
            section = folder
            summary = (_part(folder).__doc__ or "").split("\n")[0] if folder else "On their own."
            lines += ["", f"## {folder or 'top level'}", "", summary, ""]
            lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        lines.append(
            f"| `{name}` | {_shown(field)} | {_values(field)} | {field.description or ''} |"
        )
    return "\n".join(lines) + "\n"


def _part(folder: str) -> type[BaseModel]:
    part: type[BaseModel] = Settings
    for name in folder.split("."):
        inner = part.model_fields[name].annotation
        assert isinstance(inner, type)
        part = inner
    return part


def _shown(field: FieldInfo) -> str:
    default = field.default
    match default:
        case None:
            return "none"
        case bool():
            return f"`{str(default).lower()}`"
        case ():
            return "none"
        case float() if default.is_integer():
            return f"`{int(default)}`"
        case _:
            return f"`{default}`"


def _values(field: FieldInfo) -> str:
    named = _choices(field.annotation)
    limits = {
        "ge": "at least {}",
        "gt": "above {}",
        "le": "at most {}",
        "lt": "below {}",
    }
    bounds = [
        text.format(f"{getattr(each, key):g}")
        for each in field.metadata
        for key, text in limits.items()
        if hasattr(each, key)
    ]
    return ", ".join([" or ".join(named), *bounds])


def _choices(annotation: Any) -> list[str]:
    plain = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        Path: "path",
        type(None): "",
    }
    if annotation in plain:
        return [plain[annotation]] if plain[annotation] else []
    if annotation == tuple[str, ...]:
        return ["list of text"]
    found: list[str] = []
    for each in get_args(annotation):
        found += [f"`{each}`"] if isinstance(each, str) else _choices(each)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or check it with `--check`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--check" in arguments:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        if not is_current:
            print(f"not current: {PAGE}; run python -m parley.settings", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
