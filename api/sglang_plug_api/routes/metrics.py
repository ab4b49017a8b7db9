"""``GET /metrics`` for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response

from sglang_plug_api.errors import ApiError
from sglang_plug_api.observers.prometheus import CONTENT_TYPE, PrometheusObserver
from sglang_plug_api.text import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["operations"])
    observer = next((one for one in engine.observers.values() if isinstance(one, PrometheusObserver)), None)

    @router.get("/metrics", summary="Metrics in Prometheus' text format")
    async def metrics() -> Response:
        if observer is None:
            raise ApiError("the observer 'prometheus' is blocked, so there are no metrics", 404)
        return Response(observer.text(), media_type=CONTENT_TYPE)

    return router
