"""LLaVA equals transformers with several decoders, vision encoders and choices of layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlavaConfig, LlavaForConditionalGeneration

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.llava.model import Llava

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
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP: dict[str, Any] = {"model_type": "clip_vision_model", **SIZES, "image_size": 16, "patch_size": 4}
SIGLIP: dict[str, Any] = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}


def config(decoder: str = "llama", vision: dict[str, Any] = CLIP, **more: Any) -> LlavaConfig:
    text = {**TEXT, "model_type": decoder, "head_dim": 8} if decoder == "mistral" else {**TEXT, "model_type": decoder}
    return LlavaConfig(text_config=text, vision_config=vision, image_token_index=90, **more)


@pytest.mark.parametrize("decoder", ["llama", "mistral", "qwen2", "qwen3", "phi3", "granite"])
def test_text_against_transformers(decoder: str) -> None:
    check_model("LlavaForConditionalGeneration", config(decoder))


def test_another_decoder_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="a decoder of type 'gemma'"):
        built(config("gemma"))


def built(config: LlavaConfig) -> Llava:
    return Llava(config, BuildEnv(attention=TorchAttention(Llava.attention_shape(config), torch.device("cpu"), None)))


@pytest.mark.parametrize(
    "config",
    [
        config(),
        config(vision_feature_layer=[-1, 0], vision_feature_select_strategy="full"),
        config(vision=SIGLIP, vision_feature_select_strategy="full", vision_feature_layer=-1),
    ],
    ids=["clip", "clip, two layers, whole", "siglip"],
)
@torch.inference_mode()
def test_vision_encoders_and_layers_against_transformers(config: LlavaConfig) -> None:
    theirs = LlavaForConditionalGeneration(config).float().eval()
    ours = built(config).float().eval()
    ours.load_weights(theirs.state_dict().items())
    pixels = torch.randn(2, 3, 16, 16)
    expected = theirs.get_image_features(
        pixels, config.vision_feature_layer, config.vision_feature_select_strategy
    ).pooler_output
    media = [
        Media.of(0, len(expected[0]), {"pixel_values": MediaArray("float32", (1, 3, 16, 16), pixel.numpy().tobytes())})
        for pixel in pixels
    ]
    ours.mrope_positions(media[:1], 50)
    for embedding, other in zip(ours.encode_images(media), expected, strict=True):
        torch.testing.assert_close(embedding, other)
