"""Prompts of models whose images are cut into grids of patches. Not a plugin. Lives in the API process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from sglang_plug import MediaArray, MediaLimits, MediaPrompt
from sglang_plug_models.pictures import as_array, put_images

GRID, PATCHES = "image_grid_thw", "pixel_values"


class GridProcessor:
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
