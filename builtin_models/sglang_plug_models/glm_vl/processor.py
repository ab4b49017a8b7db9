"""Prompts with images for GLM-4.1V and GLM-4.5V; runs in the API process."""

from __future__ import annotations

from transformers import AutoConfig
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

from sglang_plug import MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.grid_processor import GridProcessor


def load_processor(source: MediaSource) -> GridProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images = from_checkpoint(source, AutoConfig, Glm4vImageProcessorPil)
    return GridProcessor(images, int(config.image_token_id), source.limits)
