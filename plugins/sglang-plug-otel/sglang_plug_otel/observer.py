"""One span per request, created at its end and sent by a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from sglang_plug import Observer, RequestEvent

from . import Settings

PROVIDER = "sglang-plug"
LARGEST_BATCH = 512
FIRST_TOKEN = "gen_ai.first_token"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
DONE = ("stop", "length")
"""End reasons that are no failure."""


class TracingObserver(Observer):
    """Creates spans without blocking requests on their export.

    Args:
        settings: of the plugin.
        exporter: where spans go; ``None``: over OTLP/HTTP, as the settings and the standard variables say.
    """

    def __init__(self, settings: Settings, exporter: SpanExporter | None = None) -> None:
        self._settings = settings
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": settings.service_name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter or OTLPSpanExporter(endpoint=settings.endpoint or None),
                max_queue_size=settings.queue_size,
                max_export_batch_size=min(LARGEST_BATCH, settings.queue_size),
            )
        )
        self._tracer = self._provider.get_tracer(__name__)
        self._name = ""
        self._shared: Mapping[str, str] = {}

    def on_start(self, info: Mapping[str, Any]) -> None:
        """Store the model's name and task."""
        model = str(info["served_model_name"])
        operation = "text_completion" if "generate" in info["tasks"] else "embeddings"
        self._name = f"{operation} {model}"
        self._shared = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
        }

    def on_request(self, event: RequestEvent) -> None:
        """Queue the request's span."""
        span = self._tracer.start_span(self._name, kind=SpanKind.SERVER, start_time=_nanoseconds(event.arrived))
        if span.is_recording():
            span.set_attributes({**self._shared, **_attributes(event)})
            _mark_first_token(span, event)
            if event.reason not in DONE:
                span.set_attribute("error.type", event.reason)
                span.set_status(
                    Status(StatusCode.ERROR, "the client disconnected, or the request failed or was aborted")
                )
        span.end(_nanoseconds(event.finished))

    def on_stop(self) -> None:
        """Send the remaining spans, with a short timeout for unresponsive collectors."""
        last = threading.Thread(target=self._provider.shutdown, name="otel-stop", daemon=True)
        last.start()
        last.join(self._settings.stop_timeout)


def _attributes(event: RequestEvent) -> dict[str, Any]:
    return {
        "gen_ai.response.id": event.id,
        "gen_ai.response.finish_reasons": [event.reason],
        "gen_ai.usage.input_tokens": event.prompt_tokens,
        "gen_ai.usage.output_tokens": event.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": event.cached_tokens,
    }


def _mark_first_token(span: Span, event: RequestEvent) -> None:
    if event.first_token is not None:
        waited = {TIME_TO_FIRST_TOKEN: event.first_token - event.arrived}
        span.add_event(FIRST_TOKEN, waited, _nanoseconds(event.first_token))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
