"""Prompts of models whose images are split into grids of patches; runs in the API process. Not a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from sglang_plug import MediaArray, MediaLimits, MediaPrompt

from .images import as_array, put_images

GRID, PATCHES = "image_grid_thw", "pixel_values"


class GridProcessor:
    """Resizes images to whole patches and splits them.

    Args:
        images: transformers' processor, as the checkpoint sets it up.
        placeholder: the token that stands for a part of an image.
        limits: of one request.
    """

    def __init__(self, images: Any, placeholder: int, limits: MediaLimits) -> None:
        self._images, self._placeholder, self._limits = images, placeholder, limits

    def prompt(self, tokens: Sequence[int], images: Sequence[bytes]) -> MediaPrompt:
        """Build the prompt of tokens and images; see ``MediaProcessor``."""
        return put_images(tokens, images, self._placeholder, self._limits, self._image_input)

    def _image_input(self, image: Image.Image) -> tuple[int, dict[str, MediaArray]]:
        result = self._images(images=[image], return_tensors="np")
        grid = result[GRID]
        count = int(grid.prod()) // self._images.merge_size**2
        return count, {PATCHES: as_array(result[PATCHES].astype("float32")), GRID: as_array(grid.astype("int64"))}
