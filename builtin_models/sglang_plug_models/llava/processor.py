"""Prompts with images for LLaVA; runs in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.common.checkpoint_components import from_checkpoint
from sglang_plug_models.common.images import as_array, put_images

from .tiles import SIZES, num_image_tokens, patches, pinpoints

PIXELS = "pixel_values"
SINGLE = "llava_onevision"
"""Values of ``model_type`` whose models use tiles only in prompts with one image."""


class LlavaProcessor:
    """Resizes every image to the size that the vision encoder was trained on.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        limits: of one request.
    """

    def __init__(self, images: Any, config: Any, limits: MediaLimits) -> None:
        self._images, self._limits = images, limits
        self._placeholder = int(config.image_token_index)
        self._patch = int(config.vision_config.patch_size)
        skipped = config.vision_feature_select_strategy == "default"
        self._extra = config.vision_config.model_type.startswith("clip") - skipped  # the class token

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        return put_images(tokens, images, self._placeholder, self._limits, self._image_input)

    def _image_input(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        result = self._images(images=[image], return_tensors="np")[PIXELS].astype("float32")
        height, width = result.shape[-2:]
        return (height // self._patch) * (width // self._patch) + self._extra, {PIXELS: as_array(result)}


class TilesProcessor:
    """Resizes every image to the size that the vision encoder was trained on, and splits a larger copy into tiles.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        config: the checkpoint's configuration.
        limits: of one request.

    Raises:
        ConfigError: the two state different resolutions.
    """

    def __init__(self, images: Any, config: Any, limits: MediaLimits) -> None:
        prepared, expected = (pinpoints(item.image_grid_pinpoints) for item in (images, config))
        if prepared != expected:
            raise ConfigError(
                f"image_grid_pinpoints of preprocessor_config.json ({prepared}) and of config.json ({expected}) differ"
            )
        self._images, self._config, self._limits = images, config, limits

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        whole_only = self._config.model_type == SINGLE and len(images) > 1
        image_input = self._unsplit_image_input if whole_only else self._image_input
        return put_images(tokens, images, int(self._config.image_token_index), self._limits, image_input)

    def _image_input(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        count = num_image_tokens(self._config, image.height, image.width)
        pixels = self._images(images=[image], return_tensors="np")[PIXELS][0].astype("float32")
        size = np.array([image.height, image.width], dtype="int64")
        return count, {PIXELS: as_array(pixels), SIZES: as_array(size)}

    def _unsplit_image_input(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        pixels = self._images(images=[[image, image]], return_tensors="np")[PIXELS][0]  # the number of images matters
        return patches(self._config) ** 2 + 1, {PIXELS: as_array(pixels[:1].astype("float32"))}


def load_processor(source: MediaSource) -> LlavaProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images = from_checkpoint(source, AutoConfig, AutoImageProcessor)
    return LlavaProcessor(images, config, source.limits)


def load_tiles_processor(source: MediaSource) -> TilesProcessor:
    """Load the processor from ``preprocessor_config.json``. Raises ``ConfigError`` if there is none."""
    config, images = from_checkpoint(source, AutoConfig, AutoImageProcessor)
    return TilesProcessor(images, config, source.limits)
