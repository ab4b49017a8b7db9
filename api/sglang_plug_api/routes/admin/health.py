"""Probes of the server's health: whether it is alive, and whether it still generates tokens."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.shared_probe import SharedProbe
from sglang_plug_api.pooling.pooling import probe_model
from sglang_plug_api.text.text_engine import TextEngine

PROBE_PRIORITY = 1 << 30
HEARTBEAT_TIMEOUT = 10.0
"""Seconds without a heartbeat, which the engine sends each second, after which it counts as not running."""


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""

    async def ask_model() -> None:
        try:
            async with asyncio.timeout(engine.config.health_timeout):
                await probe_model(engine, (0,), new_tokens=1, priority=PROBE_PRIORITY)
        except TimeoutError:
            if not engine.admission_gate.is_open:  # an update of the weights began meanwhile
                return
            raise ApiError(f"no answer of the model within {engine.config.health_timeout:g} seconds", 503) from None

    shared = SharedProbe(ask_model)
    router = APIRouter(tags=["operations"], lifespan=shared.lifespan)

    @router.get("/health", summary="200 once warmed up, while the engine runs; never waits for the model")
    async def health() -> Response:
        _check_alive(engine)
        return _answer(engine)

    @router.get("/ping", summary="As /health")
    async def ping() -> Response:
        return await health()

    @router.get("/ready", summary="As /health, for readiness probes")
    async def ready() -> Response:
        return await health()  # at shutdown the gate before all routes answers 503

    @router.get("/readyz", summary="As /ready")
    async def readyz() -> Response:
        return await ready()

    @router.get("/health_generate", summary="200 once the model has produced a token")
    async def health_generate() -> Response:
        _check_alive(engine)
        if engine.admission_gate.is_open:  # a planned update of the weights must not look like a failure
            await shared.check()
        return _answer(engine)

    return router


def _answer(engine: TextEngine) -> Response:
    """Return an empty answer; the state of each replica if there are several."""
    replicas = engine.client.replicas
    if len(replicas) == 1:
        return Response(status_code=200)
    states = [
        {
            "dp_rank": status.replica,
            "serves": status.failure is None,
            "silent_seconds": round(status.heartbeat_age, 1),
            **({"role": status.role} if status.role else {}),
        }
        for status in replicas
    ]
    return json_response({"replicas": states})


def _check_alive(engine: TextEngine) -> None:
    if engine.client.failure is not None:
        raise ApiError(f"the engine is not running: {engine.client.failure}", 503)
    if (age := engine.client.heartbeat_age) > HEARTBEAT_TIMEOUT:
        raise ApiError(f"no heartbeat from the engine for {age:.0f} seconds", 503)
    if engine.server.state.warming_up:
        raise ApiError("the server is warming up: its own first request has not ended", 503)
