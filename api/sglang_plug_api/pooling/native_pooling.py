"""Native response of pooling tasks, shared by ``/encode`` and ``/classify``."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Response

from sglang_plug.contracts.request import Task
from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.answers.large_json import LargeList, large_json_response
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.native.generate import prompt_adapters, prompt_ids, with_ids
from sglang_plug_api.protocol.base import refuse, salts_of_prompts
from sglang_plug_api.protocol.native import PoolBody
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.job import Job
from sglang_plug_api.text.text_engine import TextEngine

from .pooling import encode_all, meta_info, pool_all, pooling_task, truncate_vector


async def pool_response(engine: TextEngine, body: PoolBody, *tasks: Task) -> Response:
    """Answer a request with the result of ``pool_prompts``. Raises ``ApiError``."""
    id, answer = await pool_prompts(engine, body, *tasks)
    if isinstance(answer, dict):
        return json_response(answer, 200, id_header(id))
    entries = LargeList(answer, lambda entry: entry, len(answer[0]["embedding"]))
    return await large_json_response(entries, id_header(id))


async def pool_prompts(
    engine: TextEngine, body: PoolBody, *tasks: Task
) -> tuple[str, dict[str, Any] | list[dict[str, Any]]]:
    """Return the id of the request, and ``{embedding, meta_info}``, or a list of them for a list of prompts.

    If each prompt has an id of its own, the request has the first one's. Raises ``ApiError``.
    """
    started, body = time.time(), with_ids(body)
    engine.check_model(body.model)
    task = pooling_task(engine, *tasks)
    refuse(body, "input_embeds", "image_data", "audio_data", "video_data")
    if task != "embed":
        refuse(body, "dimensions", remedy="scores cannot be shortened")
    prompts = await encode_all(engine, body.inputs(), "text" if body.text is not None else "input_ids")
    caller, context = current_caller(), current_request_context()
    jobs = [
        Job(
            id=id,
            request=body.rid if isinstance(body.rid, str) else id,
            tokens=tokens,
            task=task,
            priority=body.priority or 0,
            salt=salt,
            adapter=adapter,
            caller=caller,
            context=context,
        )
        for id, tokens, salt, adapter in zip(
            prompt_ids(body),
            prompts,
            salts_of_prompts(body, body.size),
            prompt_adapters(engine, body, body.model),
            strict=True,
        )
    ]
    outputs = await pool_all(engine, jobs)
    results = [
        {
            "embedding": list(truncate_vector(engine, output.values, body.dimensions)),
            "meta_info": meta_info(engine, job, output, started),
        }
        for job, output in zip(jobs, outputs, strict=True)
    ]
    return jobs[0].request, results if body.is_batch else results[0]
