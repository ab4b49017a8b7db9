"""Anthropic's Messages API. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import RouteSpec, hookimpl

api_version = 1


@hookimpl
def register_routes() -> Iterator[RouteSpec]:
    yield RouteSpec(
        name="anthropic",
        target=f"{__name__}.routes:build",
        tasks=frozenset({"generate"}),
        example=f"{__name__}.example:requests",
        summary="Anthropic: /v1/messages and /v1/messages/count_tokens",
    )
