"""``GET /metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.observers.prometheus import CONTENT_TYPE, PrometheusObserver
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["operations"])
    candidates = engine.server.observers.values()
    observer = next((item for item in candidates if isinstance(item, PrometheusObserver)), None)

    @router.get("/metrics", summary="Metrics in Prometheus' text format")
    async def metrics() -> Response:
        if observer is None:
            raise ApiError("the observer 'prometheus' is blocked, so there are no metrics", 404)
        return Response(observer.text(), media_type=CONTENT_TYPE)

    return router
