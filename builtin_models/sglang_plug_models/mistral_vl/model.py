"""Mistral Small 3.1 and later: images of any size, encoded by Pixtral's vision encoder (Mistral AI, 2024).

A token ends each row and keeps its embedding. The vision encoder is transformers' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.models.mistral3.modeling_mistral3 import Mistral3MultiModalProjector

from sglang_plug import BuildEnv, Media, MediaArray, upload_array
from sglang_plug_models.common.blocks import CausalLM
from sglang_plug_models.common.vision_encoder import media_error
from sglang_plug_models.common.vision_projector import PIXELS, ProjectedVL
from sglang_plug_models.llama.model import Llama
from sglang_plug_models.mistral.ministral import Ministral3
from sglang_plug_models.mistral.model import Mistral
from sglang_plug_models.qwen.qwen2 import Qwen2

ENDS = "row_ends"
"""Name of the array ``[rows]`` with the token that ends each row."""


class Mistral3(ProjectedVL):
    """Mistral Small 3.1 and later."""

    decoders: ClassVar[Mapping[str, type[CausalLM]]] = {
        "mistral": Mistral,
        "ministral3": Ministral3,
        "llama": Llama,
        "qwen2": Qwen2,
    }
    projector = Mistral3MultiModalProjector

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        layers = config.vision_feature_layer
        self.layers: list[int] = [layers] if isinstance(layers, int) else list(layers)
        self.side = int(config.vision_config.patch_size) * int(config.spatial_merge_size)

    def num_image_tokens(self, arrays: Mapping[str, MediaArray]) -> int:
        """Return one token for each square of patches, and one after each row."""
        tiles, _, height, width = arrays[PIXELS].shape
        if tiles != 1 or height % self.side or width % self.side:
            raise media_error(f"an image has {width} x {height} pixels, which are not multiples of {self.side}")
        ends, rows = arrays.get(ENDS), height // self.side
        if ends is None or tuple(ends.shape) != (rows,):
            raise media_error(f"an image has no tokens that end its {rows} rows")
        return rows * (width // self.side + 1)

    def largest(self, tokens: int) -> Mapping[str, MediaArray]:
        """Return a square image of the largest size."""
        columns = (math.isqrt(4 * tokens + 1) - 1) // 2  # this many rows, each with one token more
        rows = min(columns, math.ceil(self.config.vision_config.image_size / self.side))
        ends = MediaArray("int64", (rows,), bytes(8 * rows))
        return {PIXELS: self.blank(rows * self.side, rows * self.side), ENDS: ends}

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode each image by the vision encoder and projector: ``[count, hidden]``, including the ends of rows."""
        return [self._encoded_rows(image) for image in media]

    def _encoded_rows(self, image: Media) -> Tensor:
        pixels = self.pixels([image])
        sizes = [tuple(pixels.shape[2:])]
        states = self.vision_tower.body(pixels, image_sizes=sizes, output_hidden_states=True).hidden_states
        chosen = torch.cat([states[layer] for layer in self.layers], dim=-1)
        result = self.multi_modal_projector.body(chosen[0], sizes)
        ends = self.language_model.model.embed(upload_array(image.arrays[ENDS], pixels.device))
        return torch.cat((result.view(len(ends), -1, result.shape[-1]), ends[:, None]), dim=1).flatten(0, 1)
