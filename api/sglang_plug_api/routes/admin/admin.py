"""Administrative routes."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from sglang_plug_api.text.text_engine import TextEngine

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.api_route("/flush_cache", methods=["GET", "POST"], summary="Empty the prefix cache")
    async def flush_cache() -> Response:
        result = await engine.client.control("flush_cache")
        return PlainTextResponse(FLUSHED, 200 if result["success"] else 400)

    return router
