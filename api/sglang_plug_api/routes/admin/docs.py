"""OpenAPI document of the server, which the page ``/docs`` of the playground shows."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["operations"])

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return json_response(request.app.openapi())

    return router
