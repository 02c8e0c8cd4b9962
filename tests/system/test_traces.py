"""OpenTelemetry traces of a real server, received by a collector in this process."""

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.blocking import hear, prepare
from tests.support.patience import HANG_S
from tests.support.processes import serving
from tests.support.talking import LOUD
from websockets.sync.client import connect

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="the extra 'otel' is not installed",
)


class Collector(ThreadingHTTPServer):
    """What a collector's `/v1/traces` takes, kept."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Receiver)

    def by_service(self, service: str, name: str) -> list[Any]:
        return [span for one, span in self.spans if one == service and span.name == name]


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = trace_service.ExportTraceServiceRequest()
        request.ParseFromString(body)
        for resource in request.resource_spans:
            facts = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.server.spans.append((facts["service.name"], span))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_a_session_is_one_trace_from_the_queue_to_every_stage_of_its_units(
    tmp_path: Path, collector: Collector
) -> None:
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
    (tmp_path / "parley.toml").write_text(f'[trace]\notlp_endpoint = "{endpoint}"\n')
    with serving(tmp_path) as server:
        ws = "ws" + server.url.removeprefix("http")
        with connect(f"{ws}/ws/duplex/omni_1?extensions=true") as client:
            prepare(client, system_prompt="a secret")
            for _ in range(3):
                client.send(json.dumps({"type": "audio_chunk", "audio": LOUD}))
                assert hear(client)["type"] == "result"
            client.send(json.dumps({"type": "stop"}))
            assert hear(client)["type"] == "stopped"
        server.line_with("session_ended")
        server.send(signal.SIGTERM)
        assert server.popen.wait(HANG_S) == 0

    (at_gateway,) = collector.by_service("parley-gateway", "session")
    (at_worker,) = collector.by_service("parley-worker", "session")
    units = collector.by_service("parley-worker", "unit")
    children = defaultdict(list)
    for _, span in collector.spans:
        children[span.parent_span_id].append(span)
    assert {span.trace_id for _, span in collector.spans} == {at_gateway.trace_id}
    assert at_worker.parent_span_id == at_gateway.span_id
    assert {span.name for span in children[at_gateway.span_id]} >= {"queue", "connect", "relay"}
    assert len(units) == 3
    for unit in units:
        assert unit.parent_span_id == at_worker.span_id
        lasts = unit.end_time_unix_nano - unit.start_time_unix_nano
        divided = sum(
            part.end_time_unix_nano - part.start_time_unix_nano
            for part in children[unit.span_id]
            if part.name != "other"
        )
        assert 0.95 * lasts <= divided <= lasts
    assert "a secret" not in "".join(str(span) for _, span in collector.spans)
