"""A real server that sends its spans to a collector in this process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import queue
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry's exporter is not installed")
trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

DISTRIBUTION = "sglang-plug-otel"
READY = " at http://"


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture
def collector() -> Iterator[tuple[str, queue.Queue[Any]]]:
    """Return the address of a collector and the resource spans it receives."""
    result: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource_span in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans:
                result.put((self.path, resource_span))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", result
        server.shutdown()


def serve(log: Path, *flags: str) -> subprocess.Popen[str]:
    options = ["--port", "0", "--max-total-tokens", "4096", "--device", "cpu", "--observer", "otel", *flags]
    if not _is_installed():
        options += ["--plugins-dir", str(Path(__file__).parents[2])]
    with log.open("wb") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "sglang_plug", "serve", *options],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "OTEL_BSP_SCHEDULE_DELAY": "100"},
        )


def ask(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """Wait until the server is ready, generate something and stop it; return the answer."""
    assert process.stdout is not None
    try:
        ready = next((line for line in process.stdout if READY in line), None)
        assert ready is not None, log.read_text(errors="replace")
        body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        body |= {"rid": "mine"}
        url = ready.split(" at ")[1].strip()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            result: dict[str, Any] = json.load(answer)
        process.terminate()
        assert process.wait(60) == 0, log.read_text(errors="replace")
        return result
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_spans_arrive(collector: tuple[str, queue.Queue[Any]], tmp_path: Path) -> None:
    endpoint, spans = collector
    flags = ["--set", f"otel.endpoint={endpoint}", "--set", "otel.service_name=chat"]
    answer = ask(serve(tmp_path / "log", *flags), tmp_path / "log")
    while True:
        path, resource = spans.get(timeout=60)
        assert path == "/v1/traces"
        for span in resource.scope_spans[0].spans:
            attributes = {attribute.key: attribute.value for attribute in span.attributes}
            if attributes["gen_ai.response.id"].string_value == "mine":
                break
        else:
            continue
        break
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "chat"
    assert attributes["gen_ai.usage.input_tokens"].int_value == answer["meta_info"]["prompt_tokens"]
    assert attributes["gen_ai.usage.output_tokens"].int_value == 4
    assert [event.name for event in span.events] == ["gen_ai.first_token"]


def test_no_collector_is_no_obstacle(tmp_path: Path) -> None:
    flags = ["--set", "otel.endpoint=http://127.0.0.1:9/v1/traces", "--set", "otel.stop_timeout=0.1"]
    answer = ask(serve(tmp_path / "log", *flags), tmp_path / "log")
    assert answer["meta_info"]["completion_tokens"] == 4
