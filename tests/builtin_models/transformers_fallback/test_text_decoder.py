"""The text decoders of vision-language models without a plugin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AyaVisionConfig,
    Idefics3Config,
    InternVLConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    PretrainedConfig,
    T5Config,
)

from sglang_plug import ConfigError, Facts
from sglang_plug.testing import check_model
from sglang_plug_models.transformers_fallback import choose_component
from sglang_plug_models.transformers_fallback.text_decoder import TransformersText, decoder_config, of_decoder

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXELS: dict[str, Any] = {**SIZES, "image_size": 16, "patch_size": 4}
PIXTRAL: dict[str, Any] = {**PIXELS, "model_type": "pixtral", "head_dim": 8}


def text(kind: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, "model_type": kind, **more}


def llava_next() -> PretrainedConfig:
    vision = {**PIXELS, "model_type": "clip_vision_model"}
    return LlavaNextConfig(text_config=text("mistral", head_dim=8), vision_config=vision, image_token_index=90)


def onevision() -> PretrainedConfig:
    vision = {**PIXELS, "model_type": "siglip_vision_model"}
    return LlavaOnevisionConfig(text_config=text("qwen2"), vision_config=vision, image_token_index=90)


def internvl() -> PretrainedConfig:
    vision = {**SIZES, "image_size": [16, 16], "patch_size": [4, 4]}
    return InternVLConfig(text_config=text("qwen3", head_dim=8), vision_config=vision, image_token_id=90)


def aya() -> PretrainedConfig:
    vision = {**PIXELS, "model_type": "siglip_vision_model"}
    return AyaVisionConfig(text_config=text("cohere2", logit_scale=0.3), vision_config=vision, image_token_index=90)


def granite() -> PretrainedConfig:
    vision = {**PIXELS, "model_type": "clip_vision_model"}
    decoder = text("granite", logits_scaling=8.0, embedding_multiplier=3.0)
    return LlavaNextConfig(text_config=decoder, vision_config=vision, image_token_index=90)


def ministral() -> PretrainedConfig:
    return Mistral3Config(text_config=text("ministral3", head_dim=8), vision_config=PIXTRAL, image_token_index=90)


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "aya vision, text": ("AyaVisionForConditionalGeneration", aya()),
    "llava-next with granite, text": ("LlavaNextForConditionalGeneration", granite()),
    "llava-next, text": ("LlavaNextForConditionalGeneration", llava_next()),
    "llava-onevision, text": ("LlavaOnevisionForConditionalGeneration", onevision()),
    "idefics3, text": (
        "Idefics3ForConditionalGeneration",
        Idefics3Config(text_config=text("llama"), vision_config=PIXELS, image_token_id=90),
    ),
    "internvl, text": ("InternVLForConditionalGeneration", internvl()),
    "ministral 3, text": ("Mistral3ForConditionalGeneration", ministral()),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case], model_class=TransformersText)


def test_names_of_every_version() -> None:
    names = {
        "model.language_model.layers.0.mlp.weight": "model.layers.0.mlp.weight",
        "language_model.model.layers.0.mlp.weight": "model.layers.0.mlp.weight",
        "model.text_model.norm.weight": "model.norm.weight",
        "language_model.lm_head.weight": "lm_head.weight",
        "lm_head.weight": "lm_head.weight",
        "model.vision_tower.layers.0.mlp.weight": None,
        "visual.patch_embed.weight": None,
        "multi_modal_projector.linear_1.bias": None,
    }
    for name, expected in names.items():
        assert [ours for ours, _ in of_decoder([(name, torch.zeros(1))])] == ([] if expected is None else [expected]), (
            name
        )


def test_it_is_chosen_for_what_has_a_decoder_within() -> None:
    vision_language = SimpleNamespace(architectures=["FancyForConditionalGeneration"], text_config=SimpleNamespace())
    assert choose_component("model", Facts(model=vision_language)) == "transformers-text"
    translating = T5Config(architectures=["T5ForConditionalGeneration"])
    assert choose_component("model", Facts(model=translating)) is None


def test_a_decoder_that_transformers_has_no_class_for_is_named() -> None:
    config = SimpleNamespace(
        architectures=["FancyForConditionalGeneration"], text_config=SimpleNamespace(model_type="x")
    )
    looking = SimpleNamespace(
        architectures=["P"], model_type="paligemma", text_config=SimpleNamespace(model_type="gemma")
    )
    with pytest.raises(ConfigError, match="P cannot be served through transformers: its prompts look at later tokens"):
        decoder_config(looking)
    with pytest.raises(ConfigError, match="Fancy.* transformers has no causal class for its decoder"):
        decoder_config(config)
