"""Batches as a user of OpenAI's client runs them, against real processes."""

from __future__ import annotations

import io
import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")


PATIENCE = 60.0


def until(holds: Callable[[], Any], what: str) -> Any:
    """Ask again and again until the answer is true; returns it."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return answer


class Client:
    """What users call, over one server."""

    def __init__(self, server: Any) -> None:
        self.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0)

    def start(self, lines: Sequence[dict[str, Any]], endpoint: Any = CHAT) -> Batch:
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self.api.files.create(file=io.BytesIO(content), purpose="batch")
        assert file.id.startswith("backend_input_file-")
        batch = self.api.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
        assert batch.status == "validating"
        return batch

    def get(self, id: str) -> Batch:
        return self.api.batches.retrieve(id)

    def wait(self, id: str, holds: Callable[[Batch], bool] = lambda batch: batch.status in OVER) -> Batch:
        def look() -> Batch | None:
            batch = self.get(id)
            return batch if holds(batch) else None

        found: Batch = until(look, f"batch {id}")
        return found

    def rows(self, id: str | None) -> list[dict[str, Any]]:
        if id is None:
            return []
        return [json.loads(line) for line in self.api.files.content(id).read().decode().splitlines()]


def done(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


def chat(number: int, **body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Tell me about the number {number}."}
    given = {"model": "any", "messages": [message], "max_tokens": 2, **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/chat/completions", "body": given}


def names(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


@pytest.fixture(scope="module")
def server(shared_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two sequences at a time: lines get one place."""
    folder = tmp_path_factory.mktemp("storage")
    return shared_launcher("--file-storage-path", str(folder), "--max-running-requests", "2")


@pytest.fixture
def user(server: Any) -> Client:
    """Of ``server``."""
    return Client(server)


def test_five_hundred_lines(user: Client) -> None:
    batch = user.wait(user.start([chat(number) for number in range(500)]).id)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (500, 500, 0)
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(500)
    assert len({row["id"] for row in rows}) == 500
    assert all(row["response"]["body"]["usage"]["completion_tokens"] <= 2 for row in rows)
    assert batch.output_file_id is not None
    assert [one.id for one in user.api.batches.list(limit=1)] == [batch.id]
    assert {one.id for one in user.api.files.list()} >= {batch.input_file_id, batch.output_file_id}
    assert user.api.files.delete(batch.input_file_id).deleted is True
    assert user.api.files.delete(batch.output_file_id).deleted is True
    with pytest.raises(openai.NotFoundError):
        user.api.files.retrieve(batch.input_file_id)


def test_a_batch_survives_its_server(launch: Any, tmp_path: Path) -> None:
    """Killed at a random moment, then told to stop at another: nothing is lost and nothing is there twice."""
    server = launch("--file-storage-path", str(tmp_path / "storage"))
    user = Client(server)
    # sampled, with a seed: what one line answers must not depend on which process answered it
    id = user.start([chat(number, max_tokens=8, temperature=1.0, seed=number) for number in range(200)]).id
    counted = 0
    for ending in (signal.SIGKILL, signal.SIGTERM):
        wanted = counted + random.randrange(1, 60)
        counted = done(user.wait(id, lambda batch, wanted=wanted: done(batch) >= wanted))
        server.signal(ending)
        assert server.exit_code() == (0 if ending == signal.SIGTERM else -ending)
        until(lambda server=server: not server.members(), "the engine goes away with the server")
        server = launch("--file-storage-path", str(tmp_path / "storage"))
        user = Client(server)
        assert done(user.get(id)) >= counted  # what was told is never taken back
    batch = user.wait(id)
    counts = batch.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (200, 200, 0)
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(200)
    assert [row["response"]["status_code"] for row in rows] == [200] * 200
    server.wait_whole()


def test_cancel(server: Any, user: Client) -> None:
    batch = user.start([chat(number, max_tokens=100, ignore_eos=True) for number in range(500)])
    user.wait(batch.id, lambda batch: done(batch) > 0)
    with pytest.raises(openai.BadRequestError, match="in use"):
        user.api.files.delete(batch.input_file_id)
    assert user.api.batches.cancel(batch.id).status == "cancelling"
    batch = user.wait(batch.id)
    assert batch.status == "cancelled" and batch.cancelled_at
    assert len(user.rows(batch.output_file_id)) == done(batch) < 500
    assert user.api.files.delete(batch.input_file_id).deleted
    server.wait_whole()
    with pytest.raises(openai.NotFoundError):
        user.api.batches.cancel("batch_nothing")


def test_interactive_requests_do_not_stand_behind_a_batch(server: Any, user: Client) -> None:
    """Two places and room for a queue: lines keep to one place, so whoever asks meanwhile gets the other."""
    id = user.start([chat(number, max_tokens=40, ignore_eos=True) for number in range(100)]).id
    user.wait(id, lambda batch: done(batch) > 0)
    most_waiting = 0
    for _ in range(10):
        before = done(user.get(id))
        answer = user.api.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, temperature=0
        )
        assert answer.usage is not None and answer.usage.completion_tokens > 0
        assert done(user.get(id)) - before <= 3  # forty steps each: it did not wait for the lines behind
        running, waiting = server.load()
        most_waiting = max(most_waiting, waiting)
        assert running <= 2
    assert most_waiting == 0
    assert user.get(id).status == "in_progress"
    user.api.batches.cancel(id)
    assert user.wait(id).status == "cancelled"


def test_a_busy_server_starts_no_lines(server: Any, user: Client) -> None:
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}, "stream": True}
    stop = threading.Event()

    def occupy(started: threading.Event) -> None:
        with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=60) as answer:
            for _ in answer.iter_raw():
                started.set()
                if stop.is_set():
                    return

    events = [threading.Event(), threading.Event()]
    threads = [threading.Thread(target=occupy, args=(event,)) for event in events]
    try:
        for thread in threads:
            thread.start()
        assert all(event.wait(60) for event in events)
        id = user.start([chat(number) for number in range(5)]).id
        user.wait(id, lambda batch: batch.status == "in_progress")
        for _ in range(5):
            counted, waiting = done(user.get(id)), server.load()[1]
            assert (counted, waiting) == (0, 0) or not all(thread.is_alive() for thread in threads)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert done(user.wait(id)) == 5


def test_keys_are_asked_for_and_lines_need_none(launch: Any, tmp_path: Path) -> None:
    server = launch("--file-storage-path", str(tmp_path / "storage"), "--api-key", "secret")
    server.get("/health")
    assert not (tmp_path / "storage").exists()  # nothing is stored by a server that is not asked to
    user = Client(server)
    for path in ("/v1/files", "/v1/batches", "/v1/files/x/content", "/v1/batches/x"):
        assert server.get(path).status_code == 401
    user.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
    assert done(user.wait(user.start([chat(1)]).id)) == 1
    known = [path.read_bytes() for path in (tmp_path / "storage").rglob("*") if path.is_file()]
    assert not any(b"secret" in content for content in known)
