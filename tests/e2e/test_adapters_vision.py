"""Adapters on vision-language models: those of the language model, together with images that each request shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, LogprobOptions, Request, SamplingParams
from sglang_plug.config import AdapterOptions, BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from tests.peft_adapters import linears, make_lora

from .vision_models import make_vision_model, png

PAD = "<|vision_start|><|image_pad|><|vision_end|>"
IMAGE = png(64, 24, 1)
CASES: tuple[tuple[str, list[bytes]], ...] = ((f"{PAD}What is in the image?", [IMAGE]), ("What is the capital?", []))


def config(path: Path, *adapters: str) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"),
        cache=CacheOptions(max_total_tokens=2048),
        schedule=ScheduleOptions(chunked_prefill_size=16, max_running_requests=8),
        backends=BackendOptions(attention="torch"),
        adapters=AdapterOptions(paths=adapters),
    )


@pytest.mark.parametrize("family", ["qwen2.5-vl", "gemma3"])
def test_the_language_model_is_adapted(tmp_path: Path, serve: Callable[..., Any], family: str) -> None:
    model = make_vision_model(family, tmp_path)
    lora = make_lora(tmp_path / "lora", model.reference, linears(model.reference, r".*language_model.*_proj"))
    merged = replace(model, reference=lora.merged(model.reference))
    engine = serve(config(model.path, f"mine={lora.path}"))
    requests = []
    for index, (text, images) in enumerate(CASES):
        prompt = model.prompt(text, images)
        for name in (None, "mine"):
            params = SamplingParams(max_new_tokens=5, temperature=0.0)
            plain = Request(id=f"{index}-{name}", tokens=tuple(prompt.tokens), media=prompt.media, params=params)
            requests.append(replace(plain, adapter=name, logprobs=LogprobOptions()))
    for request, output in zip(requests, engine.outputs(requests), strict=True):
        reference = model if request.adapter is None else merged
        images = CASES[int(request.id[0])][1]
        tokens, logprobs = reference.predicted(request.tokens, images, output.tokens)
        assert list(output.tokens) == tokens, request.id
        assert [entry.logprob for entry in output.logprobs] == pytest.approx(logprobs, abs=1e-3), request.id


def test_what_sees_is_not(tmp_path: Path, serve: Callable[..., Any]) -> None:
    model = make_vision_model("gemma3", tmp_path)
    lora = make_lora(tmp_path / "lora", model.reference, linears(model.reference, r".*(vision|language).*q_proj"))
    with pytest.raises(ConfigError, match=r"cannot be adapted in this model: 'model.vision_tower.*q_proj'"):
        serve(config(model.path, str(lora.path)))
