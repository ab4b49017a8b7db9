"""``GET /v1/loads``: the load of each replica, for load balancers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from sglang_plug import ReplicaReply
from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/v1/loads", summary="Running and waiting sequences, and KV slots in use")
    async def loads() -> Response:
        return json_response({"loads": await _loads(engine)})

    @router.get("/load", summary="As /v1/loads, with the number of open requests as server_load")
    async def load() -> Response:
        current = await _loads(engine)
        return json_response({"loads": current, "server_load": sum(load["num_total_reqs"] for load in current)})

    @router.get("/get_load", summary="Numbers of requests and tokens, as a list", deprecated=True)
    async def get_load() -> Response:
        return json_response(
            [
                {
                    "dp_rank": load["dp_rank"],
                    "num_reqs": load["num_total_reqs"],
                    "num_waiting_reqs": load["num_waiting_reqs"],
                    "num_tokens": load["num_used_tokens"],
                }
                for load in await _loads(engine)
            ]
        )

    return router


async def _loads(engine: TextEngine) -> list[dict[str, Any]]:
    return [_load(reply) for reply in await engine.client.control_each("info")]


def _load(reply: ReplicaReply) -> dict[str, Any]:
    """Return one replica's load; ``num_used_tokens`` counts KV slots of running sequences, without the cache's."""
    info = reply.value
    slots, running, waiting = info["slots"], info["running"], info["waiting"]
    return {
        "dp_rank": reply.replica,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting,
        "num_used_tokens": slots["running"],
        "num_cached_tokens": slots["cached"],
        "token_usage": slots["running"] / slots["capacity"],
        "max_total_num_tokens": slots["capacity"],
        "max_running_requests": info["max_running_requests"],
    }
