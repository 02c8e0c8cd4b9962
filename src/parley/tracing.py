"""OpenTelemetry traces: one per session, from the client's arrival at the gateway to the worker's
units. Off unless an endpoint is set; nothing of OpenTelemetry is imported then.

The gateway passes its trace to the worker in a header (`traceparent`, W3C). Spans contain ids,
kinds and durations; never prompts, audio or pictures.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from parley import __version__
from parley.errors import SetupError
from parley.installation import install_command
from parley.settings import TraceSettings

TRACE_HEADER: Final = "traceparent"
FLUSH_LIMIT_MS: Final = 5000

Attributes = Mapping[str, str | int | float | bool]


class TraceSpan:
    """A span, or a stand-in if traces are off. Ends once, at the latest with its `with` block."""

    def __init__(self, tracer: Any = None, span: Any = None) -> None:
        self._tracer = tracer
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    @property
    def header(self) -> str:
        """Identifies this span to another process; "" if traces are off."""
        if self._span is None:
            return ""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def begin(
        self, name: str, attributes: Attributes | None = None, *, begin_ns: int | None = None
    ) -> TraceSpan:
        """Start a child span, now or at a time in Unix nanoseconds."""
        if self._span is None:
            return self
        from opentelemetry.trace import set_span_in_context

        parent = set_span_in_context(self._span)
        made = self._tracer.start_span(
            name, context=parent, attributes=attributes, start_time=begin_ns
        )
        return TraceSpan(self._tracer, made)

    def add(
        self, name: str, begin_ns: int, end_ns: int, attributes: Attributes | None = None
    ) -> TraceSpan:
        """Add a finished child span, times in Unix nanoseconds; it may have children itself."""
        made = self.begin(name, attributes, begin_ns=begin_ns)
        if made._span is not None:
            made._span.end(end_ns)
        return made

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def end(self) -> None:
        """End the span. Safe to repeat."""
        if self._span is not None and self._span.is_recording():
            self._span.end()


OFF: Final = TraceSpan()


class Tracing:
    """The traces of one process.

    Args:
        provider: OpenTelemetry's; None: off.
    """

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("parley", __version__) if provider else None

    @classmethod
    def of(cls, settings: TraceSettings, service: str) -> Tracing:
        """As set.

        Raises:
            SetupError: an endpoint is set, and OpenTelemetry is not installed.
        """
        if settings.otlp_endpoint is None:
            return cls()
        if importlib.util.find_spec("opentelemetry") is None:
            raise SetupError(
                "trace.otlp_endpoint is set, and OpenTelemetry is not installed.",
                hint=f"Install it with: {install_command('otel')}; or unset that.",
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        provider = TracerProvider(
            resource=Resource.create({"service.name": service, "service.version": __version__}),
            sampler=ParentBased(TraceIdRatioBased(settings.sample)),
        )
        provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.otlp_endpoint))
        )
        return cls(provider)

    @property
    def is_on(self) -> bool:
        return self._provider is not None

    @contextlib.contextmanager
    def session(self, attributes: Attributes) -> Iterator[TraceSpan]:
        """The span of a session while the block runs."""
        span = self.begin_session(attributes)
        try:
            yield span
        finally:
            span.end()

    def begin_session(self, attributes: Attributes, *, parent: str = "") -> TraceSpan:
        """Start a session's span as a child of the one that `parent` (`TraceSpan.header`)
        identifies."""
        if self._tracer is None:
            return OFF
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract({TRACE_HEADER: parent})
        return TraceSpan(
            self._tracer, self._tracer.start_span("session", context=context, attributes=attributes)
        )

    def close(self) -> None:
        """Send the remaining spans. Blocks: do not call it on an event loop."""
        if self._provider is not None:
            self._provider.force_flush(FLUSH_LIMIT_MS)
            self._provider.shutdown()
