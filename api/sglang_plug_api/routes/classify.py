"""``POST /classify``: scores as the model gives them; ``POST /v1/classify``: labels and probabilities."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.errors import json_response
from sglang_plug_api.native_pooling import pooled_answer
from sglang_plug_api.pooling import pool_inputs, prompt_usage, sigmoid
from sglang_plug_api.protocol.embeddings import ClassifyBody
from sglang_plug_api.protocol.native import PoolBody
from sglang_plug_api.streaming import unless_disconnected
from sglang_plug_api.text import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """The routes."""
    router = APIRouter(tags=["native"])

    @takes(router, "/classify", PoolBody, methods=["POST", "PUT"], summary="Scores of each text, e.g. its reward")
    async def classify(request: Request) -> Response:
        body = await read_body(request, PoolBody)
        return await unless_disconnected(request, pooled_answer(engine, body, "classify"))

    @takes(router, "/v1/classify", ClassifyBody, summary="The likeliest label of each text, and all probabilities")
    async def labels(request: Request) -> Response:
        body = await read_body(request, ClassifyBody)
        return await unless_disconnected(request, _labelled(engine, body))

    return router


async def _labelled(engine: TextEngine, body: ClassifyBody) -> Response:
    id, prompts, scores = await pool_inputs(engine, body, "classify")
    names, exclusive = engine.info["labels"], engine.info["labels_exclusive"]
    data = [_label(index, probabilities(found, exclusive), names) for index, found in enumerate(scores)]
    return json_response(
        {
            "id": f"classify-{id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or engine.model_name,
            "data": data,
            "usage": prompt_usage(prompts),
        }
    )


def _label(index: int, found: list[float], names: Sequence[str]) -> dict[str, Any]:
    best = found.index(max(found))
    label = names[best] if best < len(names) else f"LABEL_{best}"
    return {"index": index, "label": label, "probs": found, "num_classes": len(found)}


def probabilities(scores: Sequence[float], exclusive: bool) -> list[float]:
    """Of each label: they add up to 1 if labels exclude each other; a single score is that of "yes"."""
    if len(scores) == 1 or not exclusive:
        return [sigmoid(one) for one in scores]
    highest = max(scores)
    shares = [math.exp(one - highest) for one in scores]
    total = sum(shares)
    return [one / total for one in shares]
