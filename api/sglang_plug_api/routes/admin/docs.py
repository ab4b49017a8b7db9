"""OpenAPI document of the server, and a page to read it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html

from sglang_plug_api.http.errors import json_response
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> Response:
        return json_response(request.app.openapi())

    @router.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="sglang-plug")

    return router
