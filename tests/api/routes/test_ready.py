"""Tests of ``/ready`` and ``/readyz``, by which load balancers decide whether to send requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def draining(app: Any) -> Iterator[Any]:
    """The application of a server that is draining."""
    app.gate.closing = True
    yield app
    app.gate.closing = False


PATHS = pytest.mark.parametrize("path", ["/ready", "/readyz"])


@PATHS
def test_while_the_engine_runs(app: Any, path: str) -> None:
    assert app.get(path).status_code == 200


@PATHS
def test_while_the_server_stops(draining: Any, path: str) -> None:
    answer = draining.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")


@PATHS
async def test_once_the_engine_has_failed(scripted_client: Any, scripted: Any, path: str) -> None:
    client = scripted_client()
    assert (await client.get(path)).status_code == 200
    scripted.dead = "out of memory"
    answer = await client.get(path)
    assert answer.status_code == 503
    assert "out of memory" in answer.json()["error"]["message"]


@PATHS
def test_no_key_is_needed(apps: Callable[..., Any], path: str) -> None:
    app = apps(api_key="user", admin_api_key="root")
    assert app.get(path).status_code == 200
    assert app.get("/load").status_code == 401
