"""``POST /load_lora_adapter`` and ``POST /unload_lora_adapter``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from pathlib import Path

from fastapi import APIRouter, Request, Response

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError, json_response
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.protocol.adapters import LoadAdapterBody, UnloadAdapterBody
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @takes(router, "/load_lora_adapter", LoadAdapterBody, summary="Load a LoRA adapter")
    @takes(router, "/v1/load_lora_adapter", LoadAdapterBody, summary="As /load_lora_adapter")
    async def load(request: Request) -> Response:
        body = await read_body(request, LoadAdapterBody)
        return await _respond(engine, _load(engine, body))

    @takes(router, "/unload_lora_adapter", UnloadAdapterBody, summary="Unload a LoRA adapter")
    @takes(router, "/v1/unload_lora_adapter", UnloadAdapterBody, summary="As /unload_lora_adapter")
    async def unload(request: Request) -> Response:
        body = await read_body(request, UnloadAdapterBody)
        return await _respond(engine, engine.adapters.unload(body.lora_name))

    return router


async def _load(engine: TextEngine, body: LoadAdapterBody) -> None:
    allowed, path = engine.config.allow_update_from, Path(body.lora_path).resolve()
    if allowed and not any(path.is_relative_to(Path(folder).resolve()) for folder in allowed):
        raise RequestError(f"{body.lora_path} is not below a folder of --allow-update-from")
    await engine.adapters.load(body.lora_name, body.lora_path)


async def _respond(engine: TextEngine, work: Awaitable[None]) -> Response:
    try:
        await work
    except (RequestError, ApiError) as error:
        logger.warning("the adapters were not changed: %s", error)
        answer = {"success": False, "error_message": str(error), "loaded_adapters": engine.adapters.paths}
        return json_response(answer, 400)
    return json_response({"success": True, "error_message": "", "loaded_adapters": engine.adapters.paths})
