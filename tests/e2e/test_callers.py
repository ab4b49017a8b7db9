"""Callers that share one server: queue limits with 429, deadlines with 504, and weights that show no key."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .servers import TIMEOUT, refused_start, until
from .test_metrics import scrape, value

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 2}}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2}),
]
MAX_RUNNING, QUEUED = 2, 1
FLAGS = ("--max-running-requests", str(MAX_RUNNING), "--max-queued-per-caller", str(QUEUED), "--context-length", "4096")


def client(server: Any, key: str, **headers: str) -> httpx.Client:
    return httpx.Client(
        base_url=server.url,
        headers={**({"authorization": f"Bearer {key}"} if key else {}), **headers},
        timeout=TIMEOUT,
    )


@pytest.fixture(scope="module")
def server(module_launcher: Any) -> Any:
    """A server with two API keys and two running slots."""
    keys = ("--api-key", "key-a,key-b", "--key-weight", "key-b=2")
    return module_launcher.in_thread(*keys, *FLAGS, "--enable-metrics")


@pytest.fixture(scope="module")
def users(module_launcher: Any) -> Any:
    """A server with one API key, where each ``user`` is a caller."""
    return module_launcher.in_thread("--api-key", "key-a", "--fairness-key", "user", *FLAGS)


@pytest.fixture(scope="module")
def keyless(module_launcher: Any) -> Any:
    """A server without API keys, and with the default of ``--fairness-key``."""
    return module_launcher.in_thread(*FLAGS)


@contextlib.contextmanager
def asking(client: httpx.Client, id: str, **fields: Any) -> Iterator[None]:
    """Keep a request with a long output on the server until the block ends."""

    def ask() -> None:
        client.post("/generate", json={**LONG, "rid": id, **fields})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        until(lambda: client.post("/abort_request", json={"rid": id}) and not thread.is_alive(), f"{id} ends")


@contextlib.contextmanager
def occupied(client: httpx.Client, queued: int = 0, **fields: Any) -> Iterator[None]:
    """Occupy all running slots, and have more requests in the queue."""

    def load() -> tuple[int, int]:
        info = client.get("/server_info").json()
        return info["running"], info["waiting"]

    until(lambda: load() == (0, 0), "earlier requests end")
    with contextlib.ExitStack() as stack:
        for number in range(MAX_RUNNING + queued):
            stack.enter_context(asking(client, f"long {number}", **fields))
            expected = (min(MAX_RUNNING, number + 1), max(0, number + 1 - MAX_RUNNING))
            until(lambda expected=expected: load() == expected, f"{expected} run and wait")
        yield


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_caller_with_a_full_queue_is_told_to_come_later_and_the_other_is_served(
    server: Any, path: str, body: dict[str, Any]
) -> None:
    with client(server, "key-a") as a, client(server, "key-b") as b, occupied(a, queued=QUEUED):
        refused = a.post(path, json=body)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        assert f"{QUEUED} waiting requests" in refused.text
        assert a.post(path, json={**body, "user": "another"}).status_code == 429
        served = b.post(path, json=body)
        assert served.status_code == 200, served.text


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_request_that_waits_beyond_its_deadline_is_refused_and_costs_nothing(
    server: Any, path: str, body: dict[str, Any]
) -> None:
    with client(server, "key-a") as a:
        before = scrape(server)
        with occupied(a):
            refused = a.post(path, json={**body, "deadline_ms": 50})
        assert refused.status_code == 504, refused.text
        assert "deadline of the request cannot be met" in refused.text
        served = a.post(path, json={**body, "deadline_ms": 1000 * int(TIMEOUT)})
        assert served.status_code == 200, served.text

        def counted() -> dict[str, float]:
            now = scrape(server)
            names = ("met", "missed", "refused")
            return {
                name: value(now, f"deadline_{name}_total") - value(before, f"deadline_{name}_total") for name in names
            }

        until(lambda: counted()["met"], "the request is counted")
        assert counted() == {"met": 1.0, "missed": 0.0, "refused": 1.0}


@pytest.mark.parametrize("deadline", [0, -5, True, "soon", 1.5, 2**60])
@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_deadlines_that_mean_nothing_are_refused(server: Any, path: str, body: dict[str, Any], deadline: Any) -> None:
    with client(server, "key-a") as a:
        answer = a.post(path, json={**body, "deadline_ms": deadline})
    assert answer.status_code == 400 and "deadline_ms" in answer.text


def test_a_deadline_in_a_stream_is_answered_with_its_status(server: Any) -> None:
    with client(server, "key-a") as a, occupied(a):
        refused = a.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": True, "deadline_ms": 50})
    assert refused.status_code == 504
    assert json.loads(refused.text)["error"]["type"] == "DeadlineExceededError"


def test_users_of_one_key_have_queues_of_their_own(users: Any) -> None:
    path, body = ROUTES[0]
    with client(users, "key-a") as a, occupied(a, queued=QUEUED, user="first"):
        assert a.post(path, json={**body, "user": "first"}).status_code == 429
        served = a.post(path, json={**body, "user": "x" * 100_000 + "\U0001f600\0"})
        assert served.status_code == 200, served.text


def test_users_of_a_server_without_keys_have_queues_of_their_own(keyless: Any) -> None:
    path, body = ROUTES[0]
    with client(keyless, "") as anybody, occupied(anybody, queued=QUEUED, user="first"):
        assert anybody.post(path, json={**body, "user": "first"}).status_code == 429
        for others in ({"user": "second"}, {}):
            served = anybody.post(path, json={**body, **others})
            assert served.status_code == 200, served.text


def test_nothing_shows_a_key(server: Any) -> None:
    with client(server, "key-a") as a:
        assert "key-b" not in a.get("/server_info").text and "key-b" not in server.log


@pytest.mark.parametrize("weight", ["key-a", "key-a=0", "key-a=1e9", "key-a=nan", "secret-key=1"])
def test_weights_that_are_refused_at_the_start(weight: str) -> None:
    output = refused_start("--api-key", "key-a", "--key-weight", weight)
    assert "--key-weight" in output and "secret-key" not in output
