"""``POST /update_weights_from_disk``, with its earlier name ``/update_weights``."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fastapi import APIRouter, Request, Response

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import cancel_on_disconnect
from sglang_plug_api.protocol.weights import UpdateWeightsBody, WeightVersionBody
from sglang_plug_api.text.text_engine import TextEngine

logger = logging.getLogger(__name__)


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["operations"])

    @takes(router, "/update_weights_from_disk", UpdateWeightsBody, summary="Update the weights from a checkpoint")
    async def update_weights(request: Request) -> Response:
        body = await read_body(request, UpdateWeightsBody)
        try:
            _check_source(body.model_path, engine.config.allow_update_from)
            if body.abort_all_requests:
                engine.abort(None)
            update = engine.update_weights(
                body.model_path, body.revision, body.weight_version, abort=body.abort_all_requests
            )
            await cancel_on_disconnect(request, update)
        except (RequestError, TimeoutError) as error:
            text = str(error) or f"requests in flight did not end within {engine.config.drain_timeout:g} seconds"
            logger.warning("the weights were not updated: %s", text)
            return json_response({"success": False, "message": text}, 400)
        return json_response({"success": True, "message": "Succeeded to update model weights."})

    @takes(router, "/update_weight_version", WeightVersionBody, summary="Set the weight version")
    async def update_weight_version(request: Request) -> Response:
        body = await read_body(request, WeightVersionBody)
        if body.abort_all_requests:
            engine.abort(None)
        engine.server.state.weight_version = body.new_version
        message = f"Weight version updated to {body.new_version}"
        return json_response({"success": True, "message": message, "new_version": body.new_version})

    takes(router, "/update_weights", UpdateWeightsBody, summary="As /update_weights_from_disk")(update_weights)
    return router


def _check_source(source: str, allowed: tuple[str, ...]) -> None:
    """Raise ``RequestError`` for a source that is wrong in any case, before waiting for requests in flight.

    That is a missing folder, or one that is not below a folder of ``--allow-update-from``.
    """
    path = Path(source).resolve()
    if allowed and not any(path.is_relative_to(Path(folder).resolve()) for folder in allowed):
        raise RequestError(f"Failed to get weights iterator: {source} (not below a folder of --allow-update-from).")
    if os.path.isabs(source) and not os.path.isdir(source):
        raise RequestError(f"Failed to get weights iterator: {source} (repository not found).")
