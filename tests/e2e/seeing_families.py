"""Tiny configurations of every family of models that see, for a tokenizer with tokens of its own for images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import (
    Gemma3Config,
    LlavaConfig,
    Mistral3Config,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
SPECIAL = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
"""Each family makes of these what it needs; ``<|image_pad|>`` stands for an image in a prompt."""
GRIDS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
QWEN_TOWER: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2}
CLIP_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "initializer_factor": 4.0,
}


@dataclass(frozen=True)
class Ids:
    """Ids of ``SPECIAL``."""

    start: int
    image: int
    end: int
    video: int

    @property
    def qwen(self) -> dict[str, int]:
        """As Qwen's configurations name them."""
        names = ("vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id")
        return dict(zip(names, (self.start, self.image, self.end, self.video), strict=True))


Text = dict[str, Any]
"""The decoder's configuration."""


@dataclass(frozen=True)
class Family:
    """How to make a tiny model that sees."""

    architecture: str
    config: Callable[[Text, Ids], PretrainedConfig]
    images: Callable[[], Any]
    """Transformers' processor of images."""
    processor: str
    """Our media processor."""
    named: tuple[int, ...] = ()
    """Which of ``SPECIAL`` the checkpoint's ``processor_config.json`` names: ends of rows, and of an image."""
    in_text: str = "<|vision_start|><|image_pad|><|vision_end|>"
    """What the chat template writes for an image."""


def qwen2(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {**QWEN_TOWER, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    text = {**text, "rope_parameters": GRIDS}
    return Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids.qwen)


def qwen25(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {**QWEN_TOWER, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64}
    vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(text_config={**text, "rope_parameters": GRIDS}, vision_config=vision, **ids.qwen)


def deep(text: Text) -> tuple[Text, dict[str, Any]]:
    """Decoder and tower of Qwen3-VL."""
    vision = {**QWEN_TOWER, "depth": 3, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64}
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]}
    return {**text, "rope_parameters": {**GRIDS, "mrope_interleaved": True}}, vision


def qwen3(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = deep(text)
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids.qwen)


def qwen3_moe(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = deep(text)
    text |= {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3VLMoeConfig(text_config=text, vision_config=vision, **ids.qwen)


def llava(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "clip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 6}
    text = {**text, "model_type": "llama"}
    return LlavaConfig(text_config=text, vision_config=vision, image_token_index=ids.image, image_seq_length=16)


def gemma3(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "siglip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 3}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    text = {**text, "sliding_window": 11, "query_pre_attn_scalar": 16, "layer_types": kinds}
    return Gemma3Config(
        text_config=text,
        vision_config={**vision, "vision_use_head": False},
        image_token_index=ids.video,
        boi_token_index=ids.image,
        eoi_token_index=ids.start,
        mm_tokens_per_image=16,
    )


def mistral3(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "pixtral", **CLIP_SIZES, "head_dim": 16, "image_size": 96, "patch_size": 4}
    del vision["initializer_factor"]
    return Mistral3Config(
        text_config={**text, "model_type": "mistral"},
        vision_config={**vision, "initializer_range": 0.2},
        image_token_index=ids.image,
        spatial_merge_size=2,
    )


def qwen_images() -> Any:
    return Qwen2VLImageProcessorPil(patch_size=4, min_pixels=8 * 8, max_pixels=96 * 96)


def clip_images() -> Any:
    return CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})


def gemma_images() -> Any:
    return Gemma3ImageProcessorPil(size={"height": 24, "width": 24})


def pixtral_images() -> Any:
    return PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 4, "width": 4})


PAD = "<|image_pad|>"
FAMILIES: dict[str, Family] = {
    "qwen2-vl": Family("Qwen2VLForConditionalGeneration", qwen2, qwen_images, "qwen-vl"),
    "qwen2.5-vl": Family("Qwen2_5_VLForConditionalGeneration", qwen25, qwen_images, "qwen-vl"),
    "qwen3-vl": Family("Qwen3VLForConditionalGeneration", qwen3, qwen_images, "qwen-vl"),
    "qwen3-vl-moe": Family("Qwen3VLMoeForConditionalGeneration", qwen3_moe, qwen_images, "qwen-vl"),
    "llava": Family("LlavaForConditionalGeneration", llava, clip_images, "llava", in_text=PAD),
    "gemma3": Family("Gemma3ForConditionalGeneration", gemma3, gemma_images, "gemma3", in_text=PAD),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration", mistral3, pixtral_images, "pixtral", named=(3, 2), in_text=PAD
    ),
}
