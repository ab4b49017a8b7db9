"""Prompts with images for Qwen2-VL, Qwen2.5-VL and Qwen3-VL; runs in the API process."""

from __future__ import annotations

from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sglang_plug import MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.grid_processor import GridProcessor


def load_processor(source: MediaSource) -> GridProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images = from_checkpoint(source, AutoConfig, Qwen2VLImageProcessorPil)
    return GridProcessor(images, int(config.image_token_id), source.limits)
