"""InternVL 3 (Zhu et al., 2025): separately encoded tiles of an image and the whole image; patches are merged.

The vision encoder is transformers' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from transformers.models.internvl.modeling_internvl import InternVLMultiModalProjector

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.common.vision_projector import PIXELS, ProjectedVL, square
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.moe.qwen_moe import Qwen3Moe
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3


class InternVL(ProjectedVL):
    """InternVL 3 and 3.5."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {
        "llama": Llama,
        "mistral": Mistral,
        "qwen2": Qwen2,
        "qwen3": Qwen3,
        "qwen3_moe": Qwen3Moe,
    }
    projector = InternVLMultiModalProjector

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        vision = config.vision_config
        (self.height, self.width), (high, wide) = vision.image_size, vision.patch_size
        self.patches, self.joined = self.height // high, round(1 / config.downsample_ratio)
        if self.height != self.width or high != wide or self.patches % self.joined:
            raise ConfigError(
                f"tiles of {self.width} x {self.height} pixels in patches of {wide} x {high} cannot be joined "
                f"{self.joined} by {self.joined}"
            )
        self.skipped = 1 if config.vision_feature_select_strategy == "default" else 0

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return the number of tokens, which is the same for each tile."""
        tiles = arrays[PIXELS].shape[0]
        square(arrays[PIXELS], self.height, tiles)
        return int(tiles * (self.patches // self.joined) ** 2)

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Return an image with the maximum number of tiles, or one tile if that is too many."""
        tiles = tokens // (self.patches // self.joined) ** 2
        return {PIXELS: self.blank(self.height, self.width, max(1, tiles))}

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode tiles by the vision encoder and projector at once: ``[count, hidden]`` for each image."""
        layer, pixels = self.config.vision_feature_layer, self.pixels(media)
        result = self.vision_tower.body(pixels, output_hidden_states=layer != -1)
        states = result.last_hidden_state if layer == -1 else result.hidden_states[layer]
        joined = self._joined(states[:, self.skipped :])
        return self.multi_modal_projector.body(joined).flatten(0, 1).split_with_sizes([image.count for image in media])

    def _joined(self, states: Tensor) -> Tensor:
        """Merge squares of ``[tiles, patches, width]`` to ``[tiles, tokens, joined * joined * width]``, row by row."""
        side, by = self.patches // self.joined, self.joined
        grid = states.reshape(len(states), side, by, side, by, -1)
        return grid.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
