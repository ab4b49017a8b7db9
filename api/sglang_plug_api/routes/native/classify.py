"""``POST /classify``: the model's scores; ``POST /v1/classify``: labels and probabilities."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import response_unless_disconnected
from sglang_plug_api.pooling.native_pooling import pool_response
from sglang_plug_api.pooling.pooling import pool_inputs, prompt_usage, sigmoid, softmax
from sglang_plug_api.protocol.embeddings import ClassifyBody
from sglang_plug_api.protocol.native import PoolBody
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["native"])

    @takes(router, "/classify", PoolBody, methods=["POST", "PUT"], summary="Scores of each text, e.g. its reward")
    async def classify(request: Request) -> Response:
        body = await read_body(request, PoolBody)
        return await response_unless_disconnected(request, pool_response(engine, body, "classify"))

    @takes(router, "/v1/classify", ClassifyBody, summary="The likeliest label of each text, and all probabilities")
    async def labels(request: Request) -> Response:
        body = await read_body(request, ClassifyBody)
        return await response_unless_disconnected(request, _labelled(engine, body))

    return router


async def _labelled(engine: TextEngine, body: ClassifyBody) -> Response:
    id, prompts, scores = await pool_inputs(engine, body, "classify")
    names, exclusive = engine.info["labels"], engine.info["labels_exclusive"]
    data = [_label(index, probabilities(values, exclusive), names) for index, values in enumerate(scores)]
    return json_response(
        {
            "id": f"classify-{id}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or engine.model_name,
            "data": data,
            "usage": prompt_usage(prompts),
        },
        headers=id_header(id),
    )


def _label(index: int, probs: list[float], names: Sequence[str]) -> dict[str, Any]:
    best = probs.index(max(probs))
    label = names[best] if best < len(names) else f"LABEL_{best}"
    return {"index": index, "label": label, "probs": probs, "num_classes": len(probs)}


def probabilities(scores: Sequence[float], exclusive: bool) -> list[float]:
    """Return the probability of each label: a softmax if labels are exclusive; a single score is that of "yes"."""
    if len(scores) == 1 or not exclusive:
        return [sigmoid(score) for score in scores]
    return softmax(scores)
