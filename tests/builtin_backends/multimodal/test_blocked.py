"""Without the extension, requests with images or input embeddings are refused by name, and all others are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig, Media, MediaArray, PluginOptions, Request, RequestError, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions
from tests.e2e.vision_families import FAMILIES
from tests.e2e.vision_models import make_vision_model, png

FAMILY = "qwen2.5-vl"


def test_requests_with_media_are_refused_by_name(serve: Callable[..., Any], tmp_path: Path) -> None:
    model = make_vision_model(FAMILY, tmp_path)
    engine = serve(
        EngineConfig(
            model=ModelOptions(path=str(model.path), device="cpu"),
            cache=CacheOptions(max_total_tokens=512),
            plugins=PluginOptions(block=("multimodal",)),
        )
    )
    prompt = model.prompt(f"what? {FAMILIES[FAMILY].in_text}", [png(16, 16)])
    media = Media.of_input_embeds(0, MediaArray("float32", (1, 2), bytes(8)))
    params = SamplingParams(max_new_tokens=3, temperature=0.0)
    (text,) = engine.outputs([Request(id="text", tokens=(5, 6, 7), params=params)])
    assert len(text.tokens) == 3
    image = Request(id="image", tokens=tuple(prompt.tokens), media=prompt.media, params=params)
    embeddings = Request(id="embeddings", tokens=(0,), media=(media,), params=params)
    for request in (image, embeddings):
        with pytest.raises(RequestError, match="media: no step extension that serves this field") as refused:
            engine.outputs([request])
        assert refused.value.status == 400
