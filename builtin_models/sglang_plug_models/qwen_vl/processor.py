"""From tokens and images to prompts, for Qwen2-VL, Qwen2.5-VL and Qwen3-VL. Lives in the API process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from PIL import Image
from transformers import AutoConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sglang_plug import ConfigError, MediaArray, MediaLimits, MediaPrompt, MediaSource
from sglang_plug_models.pictures import as_array, put_images

GRID, PATCHES = "image_grid_thw", "pixel_values"


class QwenProcessor:
    """Resizes images to whole patches and cuts them up.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        placeholder: the token that stands for a part of an image.
        limits: of one request.
    """

    def __init__(self, images: Any, placeholder: int, limits: MediaLimits) -> None:
        self._images, self._placeholder, self._limits = images, placeholder, limits

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """As ``MediaProcessor``."""
        return put_images(tokens, images, self._placeholder, self._limits, self._look)

    def _look(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        found = self._images(images=[image], return_tensors="np")
        grid = found[GRID]
        places = int(grid.prod()) // self._images.merge_size**2
        return places, {PATCHES: as_array(found[PATCHES].astype("float32")), GRID: as_array(grid.astype("int64"))}


def load_processor(source: MediaSource) -> QwenProcessor:
    """As the checkpoint's ``preprocessor_config.json`` says. Raises ``ConfigError`` if there is none."""
    try:
        config = AutoConfig.from_pretrained(source.path, local_files_only=True)
        images = Qwen2VLImageProcessorPil.from_pretrained(source.path, local_files_only=True)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ConfigError(f"{source.path} does not say how images are prepared: {str(error)[:200]}") from error
    return QwenProcessor(images, int(config.image_token_id), source.limits)
