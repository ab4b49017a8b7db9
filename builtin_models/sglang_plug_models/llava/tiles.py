"""Images of any resolution as LLaVA-NeXT has them (Liu et al., 2024): the whole image, and tiles of a larger copy.

The copy keeps its proportions within a resolution that the checkpoint lists, so some rows or columns of patches show
nothing; these have no places in the prompt. Torch-free: the API process counts places, too.
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
"""Factor by which a side may be longer than ``most`` allows before states are averaged."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the tiles of one image lie."""

    rows: int
    columns: int
    height: int
    """Rows of patches that show something."""
    width: int
    """Columns of patches that show something."""

    @property
    def tiles(self) -> int:
        """With the whole image."""
        return 1 + self.rows * self.columns

    def shrunk(self, side: int, most: int | None) -> tuple[int, int]:
        """Height and width in states, of which there are about as many as ``most`` tiles of ``side`` have at most."""
        ratio = 1.0 if most is None else math.sqrt(self.height * self.width / (most * side**2))
        if ratio <= SLACK:
            return self.height, self.width
        return int(self.height // ratio), int(self.width // ratio)


def tiling(config: Any, height: int, width: int) -> Tiling:
    """Of an image of so many pixels. Raises ``ValueError`` for an image that no resolution shows."""
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
    """In a row or column of one tile."""
    return int(config.vision_config.image_size // config.vision_config.patch_size)


def most_tiles(config: Any) -> int | None:
    """How many tiles' states an image may have, besides those of the whole; ``None``: as many as there are."""
    ratio = getattr(config, "vision_aspect_ratio", None)
    return None if ratio is None else int(str(ratio).removeprefix("anyres_max_"))


def places(config: Any, height: int, width: int) -> int:
    """Tokens of an image of so many pixels: of the whole, of each row of tiles, and one that ends each row."""
    side = patches(config)
    rows, columns = tiling(config, height, width).shrunk(side, most_tiles(config))
    return side**2 + rows * (columns + 1)


def pinpoints(given: Sequence[Sequence[int]]) -> list[list[int]]:
    """Resolutions, height before width."""
    return [list(map(int, one)) for one in given]
