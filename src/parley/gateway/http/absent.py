"""Paths of OpenAI's API that this server does not have, and their alternatives."""

from __future__ import annotations

from typing import Final

from parley.dialects import registry

NO_WEBRTC: Final = (
    "There is no WebRTC here yet: connect with transport 'websocket' ({}). In the SDKs' own words: "
    "transport: 'websocket', or OpenAIRealtimeWebSocket."
)
SECRETS: Final = "Use POST /v1/realtime/client_secrets, with the settings (and type) in session."

INSTEAD: Final[tuple[tuple[str, str], ...]] = (
    ("/v1/realtime/calls", NO_WEBRTC.format("/v1/realtime")),
    ("/v1/realtime/sessions", SECRETS),
    ("/v1/realtime/transcription_sessions", SECRETS),
    ("/v1/realtime", NO_WEBRTC.format("/v1/realtime")),
    ("/v1/live/", NO_WEBRTC.format("/v1/live/sessions")),
    ("/v1/completions", "Use /v1/chat/completions or /v1/responses."),
    ("/v1/messages", "Anthropic's API is not here: use /v1/chat/completions or /v1/responses."),
    ("/v1/embeddings", "The models here make no embeddings: use a server of your own for them."),
    ("/v1/moderations", "The models here moderate nothing: use a server of your own for it."),
    (
        "/v1/audio/translations",
        "Use /v1/audio/transcriptions, and have /v1/chat/completions translate the text.",
    ),
    ("/v1/images", "The models here generate no pictures."),
    ("/v1/videos", "The models here generate no videos."),
    ("/v1/files", "This server stores no files: send them in the request, as data URLs."),
    ("/v1/uploads", "This server stores no files: send them in the request, as data URLs."),
    ("/v1/vector_stores", "This server stores no files: send their text in the request."),
    ("/v1/batches", "Send the requests one by one: they wait in a queue."),
    ("/v1/assistants", "Use /v1/responses."),
    ("/v1/threads", "Use /v1/responses with previous_response_id."),
    ("/v1/conversations", "Use /v1/responses with previous_response_id."),
    ("/v1/fine_tuning", "Models are not trained here."),
    ("/v1/responses/input_tokens", "The usage of a response has its tokens."),
    ("/v1/responses/compact", "Send the items of the conversation that matter."),
)
SOCKET: Final = (
    "This is the address of a WebSocket, and got a plain GET. If the client opened a WebSocket, a "
    "proxy in front of the server does not pass on the headers Upgrade and Connection: see "
    "docs/do/operate.md."
)
STORED: Final = "This server does not store chat completions: use /v1/responses with store."
ROUTES: Final = (
    *("/chat/completions", "/responses", "/models", "/audio/speech", "/audio/transcriptions"),
    *("/realtime", "/live/sessions"),
)
"""Paths that clients append to their base URL."""
OTHERWISE: Final = "docs/protocols/openai-rest.md lists what there is; so does /docs."


def is_socket(path: str) -> bool:
    """True for addresses that are only WebSockets."""
    return path.startswith("/ws/") or path in registry.installed().paths


def has_hint(path: str) -> bool:
    """True for absent paths to which clients of OpenAI's API send files and long texts."""
    others = (start for start, _ in INSTEAD if not start.startswith(("/v1/realtime", "/v1/live")))
    return path.startswith(tuple(others))


def meant(path: str) -> str | None:
    """The intended path of a client with a wrong base URL (`/chat/completions`, `//v1/models`)."""
    path = path.rstrip("/")
    route = next((f"/v1{end}" for end in ROUTES if path.endswith(end)), path)
    return None if route == path else route


def sentence(method: str, path: str) -> str:
    """The reason why a path below `/v1/`, or one that was meant to be below it, returns 404, and
    the alternative."""
    if route := meant(path):
        hint = f"Use {route}: the base URL of a client must end in /v1, as http://host:port/v1."
        return f"Unknown request URL: {method} {path[:200]}. {hint}"
    stored = "Use POST." if method in ("PUT", "PATCH") else STORED
    hints = (*INSTEAD, ("/v1/chat/completions", stored))
    hint = next((hint for start, hint in hints if path.startswith(start)), OTHERWISE)
    return f"Unknown request URL: {method} {path[:200]}. {hint}"
