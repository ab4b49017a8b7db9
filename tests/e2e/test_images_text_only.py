"""A vision-language model without a plugin of its own serves text, and refuses images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AyaVisionConfig, AyaVisionForConditionalGeneration

from sglang_plug import EngineConfig, LogprobOptions, Media, Request, RequestError, SamplingParams
from sglang_plug.config import ModelOptions

from .vision_families import TEXT

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A tiny Aya Vision."""
    path = tmp_path_factory.mktemp("aya")
    text = {**TEXT, "model_type": "cohere2", "logit_scale": 0.3, "vocab_size": 96, "eos_token_id": 95}
    vision = {"model_type": "siglip_vision_model", **SIZES, "image_size": 16, "patch_size": 4}
    torch.manual_seed(4)
    config = AyaVisionConfig(text_config=text, vision_config=vision, image_token_index=90)
    model = AyaVisionForConditionalGeneration(config).float().eval()
    model.save_pretrained(path)
    return path, model


@torch.inference_mode()
def test_text_equals_transformers(checkpoint: tuple[Path, Any], serve: Callable[..., Any]) -> None:
    path, reference = checkpoint
    engine = serve(EngineConfig(model=ModelOptions(path=str(path), device="cpu")))
    assert engine.info["inputs"] == ["text"]
    prompts = [tuple(range(3, 3 + length)) for length in (5, 17, 1)]
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    requests = [
        Request(id=str(len(prompt)), tokens=prompt, params=params, logprobs=LogprobOptions()) for prompt in prompts
    ]
    for request, output in zip(requests, engine.outputs(requests), strict=True):
        ids = torch.tensor([[*request.tokens, *output.tokens]])
        logits = reference(input_ids=ids, use_cache=False).logits[0, len(request.tokens) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(output.tokens)
        logprobs = [entry.logprob for entry in output.logprobs]
        assert logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-3)
    with pytest.raises(RequestError, match="takes text only"):
        engine.outputs([Request(id="media", tokens=(1, 2, 3), media=(Media.of(0, 1, {}),))])
