"""Servers that share a database, of which one is killed."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

DISTRIBUTION = "sglang-plug-postgres"
READY = " at http://"
TIMEOUT = 240.0
SCHEMA = "sglang_plug"
"""The default schema of the server's tables."""
LINES = 300
FRANCE = "What is the capital of France?"


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class Process:
    """``sglang-plug serve`` with the database."""

    def __init__(self, log: Path, url: str) -> None:
        flags = ["--port", "0", "--max-total-tokens", "8192", "--max-running-requests", "4", "--device", "cpu"]
        flags += ["--store", "postgres", "--set", f"postgres.url={url}"]
        if not _is_installed():
            flags += ["--plugins-dir", str(Path(__file__).parents[2])]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang_plug", "serve", *flags],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(log.parent)},
            )
        self.client = httpx.Client(timeout=TIMEOUT)

    def wait_ready(self) -> None:
        """Wait until the server is ready."""
        assert self._process.stdout is not None
        ready = next((line for line in self._process.stdout if READY in line), None)
        assert ready is not None, self.log
        self.client.base_url = httpx.URL(ready.split(" at ")[1].strip())

    @property
    def log(self) -> str:
        """The text that the server wrote to stderr."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the server and everything that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End the server."""
        self.client.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def get(self, path: str) -> Any:
        """Return the JSON of ``GET path``."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        """Return the JSON of ``POST path``."""
        answer = self.client.post(path, json=body, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def processes(server: Any, tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """Start two servers that share a database."""
    first, second = (Process(tmp_path / f"{name}.log", server.url) for name in ("first", "second"))
    try:
        for process in (first, second):
            process.wait_ready()
        yield first, second
    finally:
        for process in (first, second):
            process.close()


def until(look: Callable[[], Any], event: str) -> Any:
    """Return what ``look`` returns, once it is true."""
    deadline = time.monotonic() + TIMEOUT
    while not (value := look()):
        assert time.monotonic() < deadline, f"{event} did not happen"
        time.sleep(0.2)
    return value


def upload(process: Process, content: bytes) -> str:
    file: Mapping[str, str] = process.post("/v1/files", files={"file": ("ä.jsonl", content)}, data={"purpose": "batch"})
    return file["id"]


def start_batch(process: Process, file: str) -> str:
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch: Mapping[str, str] = process.post("/v1/batches", body)
    return batch["id"]


def lines(count: int) -> bytes:
    rows = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"The number {number}", "max_tokens": 4, "ignore_eos": True},
        }
        for number in range(count)
    ]
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.timeout(600)
def test_two_servers_share_files_batches_and_responses(processes: tuple[Process, Process], server: Any) -> None:
    first, second = processes
    check_files(first, second)
    check_responses(first, second)
    check_background(first, second)
    check_killed(first, second, server)


def check_files(first: Process, second: Process) -> None:
    content = os.urandom(700_000)
    id = upload(first, content)
    record = second.get(f"/v1/files/{id}")
    assert (record["bytes"], record["filename"]) == (len(content), "ä.jsonl")
    answer = second.client.get(f"/v1/files/{id}/content")
    assert answer.content == content
    assert answer.headers["content-length"] == str(len(content))
    assert second.client.get("/v1/files/a%00b").status_code == 404
    assert second.client.delete(f"/v1/files/{id}").json()["deleted"] is True
    assert first.client.get(f"/v1/files/{id}/content").status_code == 404
    assert "postgres" in json.dumps(first.get("/server_info"))


def check_responses(first: Process, second: Process) -> None:
    """Check that a response stored by one server can be read, continued and deleted by the other."""
    stored = first.post("/v1/responses", {"input": FRANCE, "temperature": 0})
    assert second.get(f"/v1/responses/{stored['id']}") == stored
    assert second.get(f"/v1/responses/{stored['id']}/input_items")["data"][0]["content"][0]["text"] == FRANCE
    following = {"input": "And of Japan?", "previous_response_id": stored["id"], "temperature": 0}
    continued = second.post("/v1/responses", following)
    assert continued["usage"]["input_tokens"] > stored["usage"]["input_tokens"]
    assert continued["output"][0]["content"] == first.post("/v1/responses", following)["output"][0]["content"]
    assert second.client.delete(f"/v1/responses/{stored['id']}").json()["deleted"] is True
    assert first.client.get(f"/v1/responses/{stored['id']}").status_code == 404


def check_background(first: Process, second: Process) -> None:
    """Check that a response generated by one server can be watched and cancelled at the other."""
    long = {"input": "Tell me a story.", "background": True, "stream": True}
    long |= {"max_output_tokens": 3000, "ignore_eos": True}
    with first.client.stream("POST", "/v1/responses", json=long) as own:
        own_text = own.iter_text()
        event = json.loads(next(own_text).split("data: ")[1].split("\n")[0])
        id = event["response"]["id"]
        assert second.get(f"/v1/responses/{id}")["status"] in ("queued", "in_progress")
        with second.client.stream("GET", f"/v1/responses/{id}?stream=true") as other:
            parts, text = other.iter_text(), ""
            while text.count("response.output_text.delta") < 4:
                text += next(parts)
            cancelled = second.post(f"/v1/responses/{id}/cancel")
            assert cancelled["status"] == "cancelled"
            text += "".join(parts)
        "".join(own_text)
    replayed = first.client.get(f"/v1/responses/{id}?stream=true").text
    assert replayed == text
    numbers = [json.loads(line[6:])["sequence_number"] for line in text.splitlines() if line.startswith("data: ")]
    assert numbers == list(range(len(numbers)))
    assert second.get(f"/v1/responses/{id}")["status"] == "cancelled"


def let_claims_end(server: Any) -> None:
    """Expire all claims in the database, which servers that still run renew."""
    psycopg = importlib.import_module("psycopg")
    with psycopg.connect(server.url, autocommit=True) as connection:
        for rows in ("claims SET", "responses SET"):
            connection.execute(f"UPDATE {SCHEMA}.{rows} until = clock_timestamp()")


def check_killed(first: Process, second: Process, server: Any) -> None:
    """Check that another server continues when one is killed in the middle of a batch and of a response."""
    long = {"input": "Tell me a story.", "background": True, "max_output_tokens": 3000, "ignore_eos": True}
    response = first.post("/v1/responses", long)["id"]
    batch = start_batch(first, upload(second, lines(LINES)))
    until(lambda: second.get(f"/v1/batches/{batch}")["request_counts"]["completed"] > 20, "the start of the batch")
    first.kill()
    done = second.get(f"/v1/batches/{batch}")
    assert done["status"] == "in_progress" and done["request_counts"]["completed"] < LINES
    let_claims_end(server)
    ended = until(
        lambda: (state := second.get(f"/v1/batches/{batch}"))["status"] == "completed" and state, "the end of the batch"
    )
    assert ended["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    rows = second.client.get(f"/v1/files/{ended['output_file_id']}/content").text.splitlines()
    assert [json.loads(row)["custom_id"] for row in rows] == [f"line-{number}" for number in range(LINES)]
    assert ended["usage"]["output_tokens"] == 4 * LINES
    failed = until(
        lambda: (state := second.get(f"/v1/responses/{response}"))["status"] == "failed" and state,
        "the failure of a response whose server was killed",
    )
    assert failed["error"]["message"] == "the server that generated the response has ended"
