"""``GET /v1/loads``: the load of the engine, for load balancers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from sglang_plug_api.http.errors import json_response
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/v1/loads", summary="Running and waiting sequences, and KV slots in use")
    async def loads() -> Response:
        return json_response({"loads": [_load(await engine.client.control("info"))]})

    @router.get("/load", summary="As /v1/loads, with the number of open requests as server_load")
    async def load() -> Response:
        current = _load(await engine.client.control("info"))
        return json_response({"loads": [current], "server_load": current["num_total_reqs"]})

    @router.get("/get_load", summary="Numbers of requests and tokens, as a list", deprecated=True)
    async def get_load() -> Response:
        current = _load(await engine.client.control("info"))
        return json_response(
            [
                {
                    "dp_rank": current["dp_rank"],
                    "num_reqs": current["num_total_reqs"],
                    "num_waiting_reqs": current["num_waiting_reqs"],
                    "num_tokens": current["num_used_tokens"],
                }
            ]
        )

    return router


def _load(info: dict[str, Any]) -> dict[str, Any]:
    """Return one engine's load; ``num_used_tokens`` counts KV slots of running sequences, without the cache's."""
    slots, running, waiting = info["slots"], info["running"], info["waiting"]
    return {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": slots["running"],
        "num_cached_tokens": slots["cached"],
        "token_usage": slots["running"] / slots["capacity"],
        "max_total_num_tokens": slots["capacity"],
        "max_running_requests": info["max_running_requests"],
    }
