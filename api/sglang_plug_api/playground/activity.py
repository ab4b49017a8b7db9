"""``GET /activity``: the requests and cached prefixes of the engine at this moment, for the operations page."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["operations"])

    @router.get("/activity", summary="Requests, KV slots by owner, and the tree of the prefix cache; no prompt text")
    async def activity() -> Response:
        return json_response(await engine.client.control("activity"))

    return router
