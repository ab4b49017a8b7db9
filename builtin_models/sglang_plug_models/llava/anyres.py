"""LLaVA-NeXT (Liu et al., 2024) and LLaVA-OneVision (Li et al., 2024): LLaVA with images of any resolution."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llava_next.modeling_llava_next import LlavaNextMultiModalProjector
from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionMultiModalProjector

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray
from sglang_plug.transfer import upload_array
from sglang_plug_models.projected import PIXELS, square
from sglang_plug_models.towers import wrong_media

from .model import Llava
from .tiles import SIZES, most_tiles, patches, pinpoints, places, tiling


class LlavaNext(Llava):
    """LLaVA-NeXT: behind each row of patches of the larger copy stands what the checkpoint has learned to end one."""

    projector = LlavaNextMultiModalProjector
    prefixes: ClassVar[Mapping[str, str]] = {**Llava.prefixes, "model.image_newline": "image_newline"}

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        if self.extra != self.skipped:
            raise ConfigError(
                f"vision_feature_select_strategy {config.vision_feature_select_strategy!r} does not leave one state "
                f"for each patch of a tower of type {config.vision_config.model_type!r}"
            )
        self.image_newline = nn.Parameter(torch.empty(config.text_config.hidden_size))

    def places(self, arrays: Mapping[str, MediaArray]) -> int:
        """Of the whole and of what its tiles show; an image of one tile has the whole, and one more."""
        pixels, side = arrays[PIXELS], self.config.vision_config.image_size
        if pixels.shape[0] == 1:
            square(pixels, side)
            return patches(self.config) ** 2 + 1
        height, width = self._size(arrays)
        try:
            tiles = tiling(self.config, height, width).tiles
        except ValueError as error:
            raise wrong_media(str(error)) from error
        square(pixels, side, tiles)
        return places(self.config, height, width)

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Of the resolution with the most tiles."""
        side = self.config.vision_config.image_size
        sizes = [one for one in pinpoints(self.config.image_grid_pinpoints) if places(self.config, *one) <= tokens]
        if not sizes:
            return {PIXELS: self.blank(side, side)}
        size = max(sizes, key=lambda one: tiling(self.config, *one).tiles)
        tiles = tiling(self.config, *size).tiles
        return {PIXELS: self.blank(side, side, tiles), SIZES: MediaArray("int64", (2,), array("q", size).tobytes())}

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """All tiles of all images through tower and projector, at once: ``[count, hidden]`` for each image."""
        found = self.projected(self.pixels(media))
        tiles = found.split_with_sizes([one.arrays[PIXELS].shape[0] for one in media])
        return [self._joined(states, one) for states, one in zip(tiles, media, strict=True)]

    def _joined(self, states: Tensor, one: Media) -> Tensor:
        """An image's ``[tiles, patches, hidden]`` to ``[count, hidden]``."""
        if len(states) == 1:
            return torch.cat((states[0], self.image_newline[None]))
        found, side = tiling(self.config, *self._size(one.arrays)), patches(self.config)
        grid = states[1:].view(found.rows, found.columns, side, side, -1).transpose(1, 2)
        grid = grid.reshape(found.rows * side, found.columns * side, -1)
        top, left = (len(grid) - found.height) // 2, (grid.shape[1] - found.width) // 2
        grid = grid[top : top + found.height, left : left + found.width]
        if (shape := found.shrunk(side, most_tiles(self.config))) != (found.height, found.width):
            grid = F.interpolate(grid.permute(2, 0, 1)[None], shape, mode="bilinear")[0].permute(1, 2, 0)
        ends = self.image_newline.expand(len(grid), 1, -1)
        return torch.cat((states[0], torch.cat((grid, ends), dim=1).flatten(0, 1)))

    def _size(self, arrays: Mapping[str, MediaArray]) -> tuple[int, int]:
        """Height and width before resizing. Raises ``RequestError`` without them."""
        size = arrays.get(SIZES)
        if size is None or size.shape != (2,):
            raise wrong_media("the size of one is missing")
        height, width = upload_array(size, torch.device("cpu")).tolist()
        return height, width


class LlavaOnevision(LlavaNext):
    """LLaVA-OneVision: large images' states are averaged; a prompt with several images has one tile of each."""

    projector = LlavaOnevisionMultiModalProjector
