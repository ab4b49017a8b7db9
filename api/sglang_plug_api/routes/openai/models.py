"""``GET /v1/models``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.text.adapters import unknown_model
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["OpenAI"])
    card: dict[str, Any] = {
        "id": engine.model_name,
        "object": "model",
        "created": engine.server.state.started,
        "owned_by": "sglang-plug",
        "root": engine.model_name,
        "parent": None,
        "max_model_len": engine.info["context_length"],
    }

    def cards() -> dict[str, dict[str, Any]]:
        """Return the cards of the model and of each adapter, by name."""
        adapters = {
            name: {**card, "id": name, "root": path, "parent": engine.model_name}
            for name, path in engine.adapters.paths.items()
        }
        return {engine.model_name: card, **adapters}

    @router.get("/v1/models", summary="The served model, and the adapters that are loaded")
    async def models() -> Response:
        return json_response({"object": "list", "data": list(cards().values())})

    @router.get("/v1/models/{model:path}", summary="One model")
    async def model(model: str) -> Response:
        if (card := cards().get(model)) is None:
            raise unknown_model(model, engine.model_name, *engine.adapters.paths)
        return json_response(card)

    return router
