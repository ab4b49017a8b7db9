"""HEAD requests are answered like GET requests, without a body."""

from __future__ import annotations

from typing import Any

import pytest


def paths_of(app: Any) -> list[str]:
    routes = app.application.openapi()["paths"]
    return [path for path, calls in routes.items() if "get" in calls and "{" not in path]


def test_every_route_that_is_read(app: Any) -> None:
    paths = [*paths_of(app), "/openapi.json", "/docs"]
    assert len(paths) > 15
    for path in paths:
        read, head = app.get(path), app.run(app.client.head(path))
        assert (head.status_code, head.content) == (read.status_code, b""), path
        assert head.headers["content-type"] == read.headers["content-type"] if "content-type" in read.headers else True
        assert read.status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/none", 404), ("/generate", 405), ("/v1/models/none", 404)])
def test_what_cannot_be_read(app: Any, path: str, status: int) -> None:
    response = app.run(app.client.head(path))
    assert (response.status_code, response.content) == (status, b"")
