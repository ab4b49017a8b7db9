"""The tracing plugin in an in-process engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import PluginOptions
from sglang_plug_api import Engine

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the plugin's libraries are not installed")

FOLDER = Path(__file__).parents[2] / "plugins"
IN_MEMORY = """
from __future__ import annotations

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sglang_plug import ObserverSpec, hookimpl
from sglang_plug_otel import Settings
from sglang_plug_otel.observer import TracingObserver


@hookimpl
def register_observers():
    yield ObserverSpec(name="in-memory", target=f"{__name__}:Remembering")


class Remembering(TracingObserver):
    def __init__(self):
        self.exporter = InMemorySpanExporter()
        super().__init__(Settings(), self.exporter)
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginOptions]:
    """Return options for the tracing plugin with an in-memory exporter."""
    monkeypatch.syspath_prepend(FOLDER / "sglang-plug-otel")
    file = tmp_path / "in_memory.py"
    file.write_text(IN_MEMORY)
    yield PluginOptions(files=(str(file),))


def test_every_sequence_of_a_real_engine_has_a_span(options: PluginOptions) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
    with Engine(plugins=options, max_total_tokens=2048, device="cpu") as engine:
        answers: Any = engine.generate(["The capital of France is", "Once upon a time"], sampling)
        stream: Any = engine.generate("Once upon a time", {**sampling, "max_new_tokens": 1000}, stream=True)
        next(stream)
        stream.close()
        observer: Any = engine._engine.server.observers["in-memory"]
        observer.on_stop()
    first, second, aborted = observer.exporter.get_finished_spans()
    for span, answer in zip((first, second), answers, strict=True):
        meta = answer["meta_info"]
        assert span.attributes["gen_ai.response.id"] == meta["id"]
        assert span.attributes["gen_ai.usage.input_tokens"] == meta["prompt_tokens"]
        assert span.attributes["gen_ai.usage.output_tokens"] == meta["completion_tokens"] == 5
        assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)
        (event,) = span.events
        assert span.start_time <= event.timestamp <= span.end_time
    assert aborted.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert not aborted.status.is_ok
