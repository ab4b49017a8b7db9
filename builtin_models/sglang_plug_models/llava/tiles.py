"""Tiling of images of any resolution in LLaVA-NeXT (Liu et al., 2024): the whole image, and tiles of a larger copy.

The copy keeps its proportions within a resolution that the checkpoint lists, so some rows or columns of patches are
padding; these have no tokens in the prompt. Torch-free: the API process counts tokens, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.image_processing_utils import select_best_resolution

SIZES = "image_sizes"
"""Name of the array ``[2]`` with an image's height and width before it was resized."""
SLACK = 1.1
"""Factor by which a side may be longer than ``max_tiles`` allows before states are averaged."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Layout of the tiles of one image."""

    rows: int
    columns: int
    height: int
    """Rows of patches without padding."""
    width: int
    """Columns of patches without padding."""

    @property
    def tiles(self) -> int:
        """Return the number of tiles including the whole image."""
        return 1 + self.rows * self.columns

    def shrunk(self, side: int, max_tiles: int | None) -> tuple[int, int]:
        """Return height and width in states after averaging to about ``max_tiles`` tiles of ``side``."""
        ratio = 1.0 if max_tiles is None else math.sqrt(self.height * self.width / (max_tiles * side**2))
        if ratio <= SLACK:
            return self.height, self.width
        return int(self.height // ratio), int(self.width // ratio)


def tiling(config: Any, height: int, width: int) -> Tiling:
    """Choose the layout of an image of this size. Raises ``ValueError`` if no resolution fits."""
    pixels, side = config.vision_config.image_size, patches(config)
    across = None
    if height > 0 and width > 0:
        across = select_best_resolution((height, width), pinpoints(config.image_grid_pinpoints))
    if across is None:
        raise ValueError(f"an image of {width} x {height} pixels cannot be shown in any of the model's resolutions")
    rows, columns = (size // pixels for size in across)
    high, wide = rows * side, columns * side
    if width / height > wide / high:
        high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
    else:
        wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
    return Tiling(rows, columns, high, wide)


def patches(config: Any) -> int:
    """Return the number of patches in a row or column of one tile."""
    return int(config.vision_config.image_size // config.vision_config.patch_size)


def max_tiles(config: Any) -> int | None:
    """Return the maximum tiles whose states an image may have, besides the whole image's; ``None``: unlimited."""
    ratio = getattr(config, "vision_aspect_ratio", None)
    return None if ratio is None else int(str(ratio).removeprefix("anyres_max_"))


def num_image_tokens(config: Any, height: int, width: int) -> int:
    """Return the tokens of an image of this size: the whole image, each row of tiles, and one that ends each row."""
    side = patches(config)
    rows, columns = tiling(config, height, width).shrunk(side, max_tiles(config))
    return side**2 + rows * (columns + 1)


def pinpoints(sizes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the resolutions, height before width."""
    return [list(map(int, size)) for size in sizes]
