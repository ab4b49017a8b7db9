"""Web pages to try the model and to watch the server. Block them with ``--block-plugin playground``."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import RouteSpec, hookimpl


@hookimpl
def register_routes() -> Iterator[RouteSpec]:
    yield RouteSpec(
        name="playground",
        target=f"{__name__}.pages:build",
        auth="public",
        summary="web pages: / to try the model, /docs for the routes, /playground/operations to watch the server",
    )
    yield RouteSpec(
        name="activity",
        target=f"{__name__}.activity:build",
        auth="admin",
        summary="/activity: requests, KV slots by owner, and the tree of the prefix cache",
    )
