"""``/ready``: may a load balancer send requests here?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def draining(app: Any) -> Iterator[Any]:
    """The application while the server stops."""
    app.gate.closing = True
    yield app
    app.gate.closing = False


def test_while_the_engine_runs(app: Any) -> None:
    assert app.get("/ready").status_code == 200


def test_while_the_server_stops(draining: Any) -> None:
    answer = draining.get("/ready")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")


def test_once_the_engine_has_failed(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.engine.client._link, "failure", "out of memory")
    answer = app.get("/ready")
    assert answer.status_code == 503
    assert "out of memory" in answer.json()["error"]["message"]


def test_no_key_is_needed(apps: Callable[..., Any]) -> None:
    app = apps(api_key="user", admin_api_key="root")
    assert app.get("/ready").status_code == 200
    assert app.get("/load").status_code == 401
