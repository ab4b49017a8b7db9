"""The native answer of pooling tasks, which ``/encode`` and ``/classify`` share."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Response

from sglang_plug.specs import Task

from .errors import json_response
from .job import Job
from .native import prompt_adapters, prompt_ids
from .pooling import encode_all, meta_info, pool_all, pooling_task, shortened
from .protocol.base import refuse
from .protocol.native import PoolBody
from .text import TextEngine


async def pooled_answer(engine: TextEngine, body: PoolBody, *tasks: Task) -> Response:
    """What ``pooled`` finds, as JSON. Raises ``ApiError``."""
    return json_response(await pooled(engine, body, *tasks))


async def pooled(engine: TextEngine, body: PoolBody, *tasks: Task) -> dict[str, Any] | list[dict[str, Any]]:
    """``{embedding, meta_info}``, or a list of them for a list of prompts. Raises ``ApiError``."""
    started = time.time()
    engine.check_model(body.model)
    task = pooling_task(engine, *tasks)
    refuse(body, "input_embeds", "image_data", "audio_data", "video_data")
    if task != "embed":
        refuse(body, "dimensions", remedy="scores cannot be shortened")
    prompts = await encode_all(engine, body.inputs(), "text" if body.text is not None else "input_ids")
    jobs = [
        Job(
            id=id,
            request=body.rid if isinstance(body.rid, str) else id,
            tokens=tokens,
            task=task,
            priority=body.priority or 0,
            salt=body.salt,
            adapter=adapter,
        )
        for id, tokens, adapter in zip(
            prompt_ids(body), prompts, prompt_adapters(engine, body, body.model), strict=True
        )
    ]
    pieces = await pool_all(engine, jobs)
    found = [
        {
            "embedding": list(shortened(engine, piece.values, body.dimensions)),
            "meta_info": meta_info(engine, job, piece, started),
        }
        for job, piece in zip(jobs, pieces, strict=True)
    ]
    return found if body.is_batch else found[0]
