"""Tiny configurations of every family of vision-language models, for a tokenizer with special tokens for images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import (
    Gemma3Config,
    Glm4vConfig,
    Glm4vMoeConfig,
    Idefics3Config,
    InternVLConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaOnevisionConfig,
    Mistral3Config,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    SmolVLMConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

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
"""Special tokens, of which each family uses some; ``<|image_pad|>`` stands for an image in a prompt."""
GRIDS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
QWEN_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2}
CLIP_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "initializer_factor": 4.0,
}


@dataclass(frozen=True)
class Ids:
    """Token ids of ``SPECIAL``."""

    start: int
    image: int
    end: int
    video: int

    @property
    def qwen(self) -> dict[str, int]:
        """The token ids under their names in Qwen's configurations."""
        names = ("vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id")
        return dict(zip(names, (self.start, self.image, self.end, self.video), strict=True))


Text = dict[str, Any]
"""Configuration of the text decoder."""


@dataclass(frozen=True)
class Family:
    """The parts from which a tiny vision-language model is made."""

    architecture: str
    config: Callable[[Text, Ids], PretrainedConfig]
    images: Callable[[], Any]
    """Creates the image processor of transformers."""
    processor: str
    """Name of the media processor of this project."""
    named: Mapping[str, int] = field(default_factory=dict)
    """Indices in ``SPECIAL`` of the tokens in the checkpoint's ``processor_config.json``, by their names in it."""
    of_tokenizer: Mapping[str, int] = field(default_factory=dict)
    """Indices in ``SPECIAL`` of the tokens that the tokenizer has names for, by name."""
    more: tuple[str, ...] = ()
    """Additional special tokens of the tokenizer."""
    in_text: str = "<|vision_start|><|image_pad|><|vision_end|>"
    """The text that the chat template writes for an image."""


def qwen2(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {**QWEN_VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
    text = {**text, "rope_parameters": GRIDS}
    return Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids.qwen)


def qwen25(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {**QWEN_VISION, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64}
    vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
    return Qwen2_5_VLConfig(text_config={**text, "rope_parameters": GRIDS}, vision_config=vision, **ids.qwen)


def deep(text: Text) -> tuple[Text, dict[str, Any]]:
    """Return the configurations of the text decoder and of the vision encoder of Qwen3-VL."""
    vision = {**QWEN_VISION, "depth": 3, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64}
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]}
    return {**text, "rope_parameters": {**GRIDS, "mrope_interleaved": True}}, vision


def qwen3(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = deep(text)
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids.qwen)


def qwen3_moe(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = deep(text)
    text |= {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
    return Qwen3VLMoeConfig(text_config=text, vision_config=vision, **ids.qwen)


def recurrent(text: Text) -> tuple[Text, dict[str, Any]]:
    """Return the configurations of the text decoder and of the vision encoder of Qwen3.5."""
    _, vision = deep(text)
    del vision["deepstack_visual_indexes"]
    text = {**text, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    text |= {"linear_key_head_dim": 8, "linear_value_head_dim": 12}
    text |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    parameters = {**GRIDS, "mrope_section": [1, 1, 2], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    return {**text, "rope_parameters": parameters}, vision


def qwen35(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = recurrent(text)
    return Qwen3_5Config(text_config=text, vision_config=vision, **ids.qwen)


def qwen35_moe(text: Text, ids: Ids) -> PretrainedConfig:
    text, vision = recurrent(text)
    text |= {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
    text |= {"shared_expert_intermediate_size": 20}
    return Qwen3_5MoeConfig(text_config=text, vision_config=vision, **ids.qwen)


GLM_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "hidden_size": 32, "patch_size": 4, "image_size": 16}
GLM_VISION |= {"out_hidden_size": 64, "intermediate_size": 40, "initializer_range": 0.2}


def glm(text: Text, ids: Ids) -> PretrainedConfig:
    """Return a configuration of GLM-4V, whose heads of 16 are rotated by half (``partial_rotary_factor=0.5``)."""
    parameters = {**GRIDS, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
    return Glm4vConfig(
        text_config={**text, "rope_parameters": parameters},
        vision_config=GLM_VISION,
        image_token_id=ids.image,
        image_start_token_id=ids.start,
        image_end_token_id=ids.end,
    )


def glm_moe(text: Text, ids: Ids) -> PretrainedConfig:
    parameters = {**GRIDS, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
    text = {**text, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2}
    return Glm4vMoeConfig(
        text_config={**text, "rope_parameters": parameters},
        vision_config=GLM_VISION,
        image_token_id=ids.image,
        image_start_token_id=ids.start,
        image_end_token_id=ids.end,
    )


def llava(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "clip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 6}
    text = {**text, "model_type": "llama"}
    return LlavaConfig(text_config=text, vision_config=vision, image_token_index=ids.image, image_seq_length=16)


TILES = [[24, 48], [48, 24], [48, 48], [24, 72]]
"""Supported resolutions of images, as height and width."""


def llava_next(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "clip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 6}
    text = {**text, "model_type": "mistral", "sliding_window": None}
    return LlavaNextConfig(
        text_config=text, vision_config=vision, image_token_index=ids.image, image_grid_pinpoints=TILES
    )


def onevision(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"model_type": "siglip_vision_model", **CLIP_SIZES, "image_size": 24, "patch_size": 5}
    return LlavaOnevisionConfig(
        text_config={**text, "model_type": "qwen2"},
        vision_config={**vision, "vision_use_head": False},
        image_token_index=ids.image,
        image_grid_pinpoints=TILES,
        vision_aspect_ratio="anyres_max_2",
    )


def internvl(text: Text, ids: Ids) -> PretrainedConfig:
    vision = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 24, "patch_size": 3, "initializer_range": 0.2}
    text = {**text, "model_type": "qwen3"}
    return InternVLConfig(text_config=text, vision_config=vision, image_token_id=ids.image, image_seq_length=16)


NAMED_TILES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
NAMED_TILES |= {"num_attention_heads": 2, "image_size": 24, "patch_size": 3, "initializer_range": 0.2}


def idefics(text: Text, ids: Ids) -> PretrainedConfig:
    text = {**text, "model_type": "llama"}
    return Idefics3Config(text_config=text, vision_config=NAMED_TILES, image_token_id=ids.image, scale_factor=2)


def smolvlm(text: Text, ids: Ids) -> PretrainedConfig:
    text = {**text, "model_type": "llama", "tie_word_embeddings": True}
    return SmolVLMConfig(text_config=text, vision_config=NAMED_TILES, image_token_id=ids.image, scale_factor=4)


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


def mistral3(text: Text, ids: Ids, kind: str = "mistral", **more: Any) -> PretrainedConfig:
    vision = {"model_type": "pixtral", **CLIP_SIZES, "head_dim": 16, "image_size": 96, "patch_size": 4}
    del vision["initializer_factor"]
    return Mistral3Config(
        text_config={**text, "model_type": kind, **more},
        vision_config={**vision, "initializer_range": 0.2},
        image_token_index=ids.image,
        spatial_merge_size=2,
    )


def ministral3(text: Text, ids: Ids) -> PretrainedConfig:
    grown = {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 32}
    stretched = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    return mistral3(text, ids, "ministral3", rope_parameters={**stretched, **grown})


def qwen_images() -> Any:
    return Qwen2VLImageProcessorPil(patch_size=4, min_pixels=8 * 8, max_pixels=96 * 96)


def glm_images() -> Any:
    return Glm4vImageProcessorPil(patch_size=4, size={"shortest_edge": 8 * 8 * 2, "longest_edge": 96 * 96 * 2})


def clip_images() -> Any:
    return CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})


def gemma_images() -> Any:
    return Gemma3ImageProcessorPil(size={"height": 24, "width": 24})


def tiles_images() -> Any:
    size = {"height": 24, "width": 24}
    return LlavaNextImageProcessorPil(size={"shortest_edge": 24}, crop_size=size, image_grid_pinpoints=TILES)


def onevision_images() -> Any:
    return LlavaOnevisionImageProcessorPil(size={"height": 24, "width": 24}, image_grid_pinpoints=TILES)


def internvl_images() -> Any:
    return GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, crop_to_patches=True, max_patches=3)


def idefics_images() -> Any:
    return Idefics3ImageProcessorPil(size={"longest_edge": 72}, max_image_size={"longest_edge": 24})


def smolvlm_images() -> Any:
    return SmolVLMImageProcessorPil(size={"longest_edge": 48}, max_image_size={"longest_edge": 24})


def pixtral_images() -> Any:
    return PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 4, "width": 4})


PAD = "<|image_pad|>"
TILES_OF_IDEFICS = ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>")
ROW_ENDS = {"image_break_token": 3, "image_end_token": 2}
FAMILIES: dict[str, Family] = {
    "qwen2-vl": Family("Qwen2VLForConditionalGeneration", qwen2, qwen_images, "qwen-vl"),
    "qwen2.5-vl": Family("Qwen2_5_VLForConditionalGeneration", qwen25, qwen_images, "qwen-vl"),
    "qwen3-vl": Family("Qwen3VLForConditionalGeneration", qwen3, qwen_images, "qwen-vl"),
    "qwen3-vl-moe": Family("Qwen3VLMoeForConditionalGeneration", qwen3_moe, qwen_images, "qwen-vl"),
    "qwen3.5": Family("Qwen3_5ForConditionalGeneration", qwen35, qwen_images, "qwen35-vl"),
    "qwen3.5-moe": Family("Qwen3_5MoeForConditionalGeneration", qwen35_moe, qwen_images, "qwen35-vl"),
    "glm-4.1v": Family("Glm4vForConditionalGeneration", glm, glm_images, "glm-vl"),
    "glm-4.5v": Family("Glm4vMoeForConditionalGeneration", glm_moe, glm_images, "glm-vl"),
    "llava": Family("LlavaForConditionalGeneration", llava, clip_images, "llava", in_text=PAD),
    "llava-next": Family("LlavaNextForConditionalGeneration", llava_next, tiles_images, "llava-tiles", in_text=PAD),
    "llava-onevision": Family(
        "LlavaOnevisionForConditionalGeneration", onevision, onevision_images, "llava-tiles", in_text=PAD
    ),
    "internvl": Family(
        "InternVLForConditionalGeneration",
        internvl,
        internvl_images,
        "internvl",
        in_text=PAD,
        of_tokenizer={"start_image_token": 0, "end_image_token": 2},
    ),
    "idefics3": Family(
        "Idefics3ForConditionalGeneration", idefics, idefics_images, "idefics", in_text=PAD, more=TILES_OF_IDEFICS
    ),
    "smolvlm": Family(
        "SmolVLMForConditionalGeneration", smolvlm, smolvlm_images, "idefics", in_text=PAD, more=TILES_OF_IDEFICS
    ),
    "gemma3": Family("Gemma3ForConditionalGeneration", gemma3, gemma_images, "gemma3", in_text=PAD),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration", mistral3, pixtral_images, "pixtral", named=ROW_ENDS, in_text=PAD
    ),
    "ministral3": Family(
        "Mistral3ForConditionalGeneration", ministral3, pixtral_images, "pixtral", named=ROW_ENDS, in_text=PAD
    ),
}
