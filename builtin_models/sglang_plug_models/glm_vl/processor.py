"""From tokens and images to prompts, for GLM-4.1V and GLM-4.5V. Lives in the API process."""

from __future__ import annotations

from transformers import AutoConfig
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

from sglang_plug import MediaSource
from sglang_plug_models.checkpoint_parts import from_checkpoint
from sglang_plug_models.grid_images import GridProcessor


def load_processor(source: MediaSource) -> GridProcessor:
    """As the checkpoint's ``preprocessor_config.json`` says. Raises ``ConfigError`` if there is none."""
    config, images = from_checkpoint(source, AutoConfig, Glm4vImageProcessorPil)
    return GridProcessor(images, int(config.image_token_id), source.limits)
