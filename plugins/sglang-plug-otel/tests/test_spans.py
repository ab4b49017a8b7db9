from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sglang_plug_otel import Settings
from sglang_plug_otel.observer import TracingObserver

from sglang_plug import RequestEvent

INFO = {"served_model_name": "demo", "tasks": ["generate"]}
EVENT = RequestEvent(
    id="r1",
    reason="stop",
    prompt_tokens=5,
    cached_tokens=2,
    output_tokens=7,
    arrived=1000.0,
    first_token=1000.25,
    finished=1001.5,
)


def spans_of(*events: RequestEvent, info: dict[str, Any] = INFO, **settings: Any) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    observer = TracingObserver(Settings(**settings), exporter)
    observer.on_start(info)
    for event in events:
        observer.on_request(event)
    observer.on_stop()
    return list(exporter.get_finished_spans())


def test_a_span_says_what_was_asked_and_answered() -> None:
    (span,) = spans_of(EVENT, service_name="chat")
    assert (span.name, span.kind, span.parent) == ("text_completion demo", SpanKind.SERVER, None)
    assert (span.start_time, span.end_time) == (1000 * 10**9, 1001_500_000_000)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sglang-plug",
        "gen_ai.request.model": "demo",
        "gen_ai.response.model": "demo",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
    }
    assert span.resource.attributes["service.name"] == "chat"
    assert span.status.status_code is StatusCode.UNSET


def test_the_first_token_is_an_event() -> None:
    (span,) = spans_of(EVENT)
    (event,) = span.events
    assert (event.name, event.timestamp) == ("gen_ai.first_token", 1000_250_000_000)
    assert dict(event.attributes or {}) == {"gen_ai.server.time_to_first_token": 0.25}


def test_without_a_first_token_there_is_no_event() -> None:
    (span,) = spans_of(replace(EVENT, first_token=None, output_tokens=0))
    assert span.events == ()


@pytest.mark.parametrize(("reason", "failed"), [("stop", False), ("length", False), ("abort", True)])
def test_failed_requests_become_error_spans(reason: str, failed: bool) -> None:
    (span,) = spans_of(replace(EVENT, reason=reason))
    assert (span.status.status_code is StatusCode.ERROR) == failed
    assert (span.attributes or {}).get("error.type") == (reason if failed else None)


def test_pooling_models_have_another_operation() -> None:
    (span,) = spans_of(EVENT, info={"served_model_name": "m", "tasks": ["embed"]})
    assert span.name == "embeddings m"


class Stuck(SpanExporter):
    """Exporter that blocks until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.release.wait()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def test_a_collector_that_does_not_answer_stops_nothing() -> None:
    stuck = Stuck()
    observer = TracingObserver(Settings(queue_size=4, stop_timeout=0.05), stuck)
    observer.on_start(INFO)
    for _ in range(4):
        observer.on_request(EVENT)
    assert stuck.entered.wait(60)
    for _ in range(100):  # more than the queue holds: these would hang if the observer blocked
        observer.on_request(EVENT)
    observer.on_stop()
    assert not stuck.release.is_set()
    stuck.release.set()
