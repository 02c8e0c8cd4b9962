"""A language model's server, scripted, that does what requests ask for: calls a function that is on
offer, fills in a schema, or says a sentence. A stand-in for tests, and named as such."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

SENTENCE = ["The capital ", "of Italy ", "is Rome."]


def filled(schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Any:
    """The simplest value of a schema; one that contains itself ends at the second level."""
    if "$ref" in schema:
        found: Any = root
        for name in schema["$ref"].split("/")[1:]:
            found = found[name]
        return filled(found, root, depth + 1)
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return filled(schema["anyOf"][-1 if depth > 1 else 0], root, depth)
    match schema.get("type"):
        case "object":
            named = schema.get("properties", {})
            names = named if depth < 2 else schema.get("required", ())
            return {name: filled(named[name], root, depth) for name in names}
        case "array":
            return []
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "null":
            return None
    return "Rome"


def pieces_of(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The deltas of an answer."""
    tools = asked.get("tools") or []
    has_result = any(message["role"] == "tool" for message in asked["messages"])
    if tools and not has_result:
        function = tools[0]["function"]
        schema = function.get("parameters") or {"type": "object"}
        call = {"name": function["name"], "arguments": json.dumps(filled(schema, schema))}
        return [
            {"tool_calls": [{"index": 0, "id": "call_x", "type": "function", "function": call}]}
        ]
    form = asked.get("response_format") or {}
    if form.get("type") == "json_schema":
        schema = form["json_schema"]["schema"]
        return [{"content": json.dumps(filled(schema, schema))}]
    return [{"content": words} for words in SENTENCE]


@contextmanager
def obliging_llm() -> Iterator[str]:
    """Its address, up to `/v1`."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self._send(b'{"data": [{"id": "obliging"}]}', "application/json")

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            lines = [{"choices": [{"delta": delta}]} for delta in pieces_of(asked)]
            body = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
            self._send(f"{body}data: [DONE]\n\n".encode(), "text/event-stream")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
