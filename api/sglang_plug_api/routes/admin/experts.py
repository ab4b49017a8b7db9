"""Routes that record the experts that tokens choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.text.text_engine import TextEngine

STARTED = "Start recording expert distribution.\n"
STOPPED = "Stop recording expert distribution.\n"
DUMPED = "Dump expert distribution record.\n"


def build(engine: TextEngine) -> APIRouter:
    """Return the routes. Mode and folder are the operator's choice, not the caller's."""
    router = APIRouter(tags=["operations"])
    mode = engine.config.expert_distribution_recorder_mode
    folder = Path(engine.config.expert_distribution_dir).absolute()

    async def call(name: str, **arguments: Any) -> Any:
        if mode is None:
            raise ApiError("the server was started without --expert-distribution-recorder-mode (stat or per_token)")
        try:
            return await engine.client.control(name, **arguments)
        except RequestError as error:
            if error.status == 404:
                architecture = engine.info["architecture"]
                raise ApiError(f"{architecture} has no experts whose choices could be recorded") from None
            raise

    @router.post("/start_expert_distribution_record", summary="Record the experts that tokens choose")
    async def start_expert_distribution_record() -> Response:
        await call("start_expert_record", mode=mode)
        return PlainTextResponse(STARTED)

    @router.post("/stop_expert_distribution_record", summary="Stop recording experts; the record is kept")
    async def stop_expert_distribution_record() -> Response:
        await call("stop_expert_record")
        return PlainTextResponse(STOPPED)

    @router.post("/dump_expert_distribution_record", summary="Write the record to files and begin a new one")
    async def dump_expert_distribution_record() -> Response:
        dumped = await call("dump_expert_record", folder=str(folder))
        return PlainTextResponse(DUMPED + "".join(f"{name}\n" for name in dumped["files"]))

    return router
