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

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray, upload_array
from sglang_plug_models.common.vision_encoder import media_error
from sglang_plug_models.common.vision_projector import PIXELS, square

from .model import Llava
from .tiles import SIZES, max_tiles, num_image_tokens, patches, pinpoints, tiling


class LlavaNext(Llava):
    """LLaVA-NeXT: a learned embedding ends each row of patches of the larger copy."""

    projector = LlavaNextMultiModalProjector
    prefixes: ClassVar[Mapping[str, str]] = {**Llava.prefixes, "model.image_newline": "image_newline"}

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        if self.extra != self.skipped:
            raise ConfigError(
                f"vision_feature_select_strategy {config.vision_feature_select_strategy!r} does not leave one state "
                f"for each patch of a vision encoder of type {config.vision_config.model_type!r}"
            )
        self.image_newline = nn.Parameter(torch.empty(config.text_config.hidden_size))

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return the tokens of the whole image and of its tiles; an image of one tile has the whole, and one more."""
        pixels, side = arrays[PIXELS], self.config.vision_config.image_size
        if pixels.shape[0] == 1:
            square(pixels, side)
            return patches(self.config) ** 2 + 1
        height, width = self._size(arrays)
        try:
            tiles = tiling(self.config, height, width).tiles
        except ValueError as error:
            raise media_error(str(error)) from error
        square(pixels, side, tiles)
        return num_image_tokens(self.config, height, width)

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Return an image of the resolution with the most tiles."""
        side = self.config.vision_config.image_size
        sizes = [
            pinpoint
            for pinpoint in pinpoints(self.config.image_grid_pinpoints)
            if num_image_tokens(self.config, *pinpoint) <= tokens
        ]
        if not sizes:
            return {PIXELS: self.blank(side, side)}
        size = max(sizes, key=lambda item: tiling(self.config, *item).tiles)
        tiles = tiling(self.config, *size).tiles
        return {PIXELS: self.blank(side, side, tiles), SIZES: MediaArray("int64", (2,), array("q", size).tobytes())}

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode tiles of all images by encoder and projector at once: ``[count, hidden]`` for each image."""
        result = self.projected(self.pixels(media))
        tiles = result.split_with_sizes([image.arrays[PIXELS].shape[0] for image in media])
        return [self._joined(states, item) for states, item in zip(tiles, media, strict=True)]

    def _joined(self, states: Tensor, image: Media) -> Tensor:
        """Join an image's ``[tiles, patches, hidden]`` to ``[count, hidden]``."""
        if len(states) == 1:
            return torch.cat((states[0], self.image_newline[None]))
        layout, side = tiling(self.config, *self._size(image.arrays)), patches(self.config)
        grid = states[1:].view(layout.rows, layout.columns, side, side, -1).transpose(1, 2)
        grid = grid.reshape(layout.rows * side, layout.columns * side, -1)
        top, left = (len(grid) - layout.height) // 2, (grid.shape[1] - layout.width) // 2
        grid = grid[top : top + layout.height, left : left + layout.width]
        if (shape := layout.shrunk(side, max_tiles(self.config))) != (layout.height, layout.width):
            grid = F.interpolate(grid.permute(2, 0, 1)[None], shape, mode="bilinear")[0].permute(1, 2, 0)
        ends = self.image_newline.expand(len(grid), 1, -1)
        return torch.cat((states[0], torch.cat((grid, ends), dim=1).flatten(0, 1)))

    def _size(self, arrays: Mapping[str, MediaArray]) -> tuple[int, int]:
        """Return height and width before resizing. Raises ``RequestError`` if they are missing."""
        size = arrays.get(SIZES)
        if size is None or size.shape != (2,):
            raise media_error("an image has no size")
        height, width = upload_array(size, torch.device("cpu")).tolist()
        return height, width


class LlavaOnevision(LlavaNext):
    """LLaVA-OneVision: large images' states are averaged; in a prompt with several images each has one tile."""

    projector = LlavaOnevisionMultiModalProjector
