"""Qwen2-VL (Wang et al., 2024) and Qwen2.5-VL (Bai et al., 2025).

The decoder is Qwen2's, but for its positions: each token has three, its time, row and column. Text has three equal
ones; an image has its grid's, and takes as many positions as its longer side has tokens. The part that reads images is
transformers' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from sglang_plug import BuildEnv, Media, Seeing
from sglang_plug.layers import Rope
from sglang_plug.transfer import upload_array
from sglang_plug_models.blocks import CausalLM, Decoder, SelfAttention, head_dim, window_of
from sglang_plug_models.towers import Tower, decoder_config, renamed, wrong_media

PREFIXES: Mapping[str, str] = {
    "model.visual.": "visual.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""How checkpoints of some versions begin names -> how those of the first did."""
GRID, PATCHES = "image_grid_thw", "pixel_values"
"""Names of an image's arrays."""


class GridRope(Rope):
    """Angles of positions with three rows, which take turns among a head's dimensions."""

    def __init__(self, dim: int, parameters: Mapping[str, Any], longest: int, served: int | None = None) -> None:
        super().__init__(dim, parameters, longest, served)
        self.sections: list[int] = list(parameters["mrope_section"])

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``positions`` ``[T]``, or ``[3, T]``: two ``[T, width]`` in ``dtype``."""
        if positions.dim() == 1:
            return super().forward(positions, dtype)
        every = positions[..., None].float() * self.inverse  # [3, T, width / 2]
        parts = every.split_with_sizes(self.sections, dim=-1)
        angles = torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.factor).to(dtype), (angles.sin() * self.factor).to(dtype)


class GridDecoder(Decoder):
    """A decoder whose positions have three rows where there are images."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """What ``angles`` works with."""
        return GridRope.of(config, head_dim(config), env.context_length)


class Qwen2VL(CausalLM, Seeing):
    """Qwen2-VL."""

    tower: type[nn.Module] = Qwen2VisionTransformerPretrainedModel

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(decoder_config(config), env)
        self.merge = int(config.vision_config.spatial_merge_size)
        self.visual = Tower(self.tower(config.vision_config))

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Of the decoder."""
        return config.text_config

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return GridDecoder(config, env, layers)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """As Qwen2's."""
        return SelfAttention(config, env, index, qkv_bias=True, window=window_of(config, index))

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """The images' patches through the tower, all at once: ``[count, hidden]`` for each."""
        weight = self.model.embed_tokens.weight
        patches = torch.cat([upload_array(one.arrays[PATCHES], weight.device) for one in media])
        grids = torch.cat([upload_array(one.arrays[GRID], weight.device) for one in media])
        found: Tensor = self.visual.body(patches.to(weight.dtype), grid_thw=grids).pooler_output
        return found.split_with_sizes([one.count for one in media])

    def coordinates(self, media: Sequence[Media], length: int) -> Tensor:
        """``[3, length]``: time, row and column."""
        found, place, position = [], 0, 0
        for one in media:
            rows, columns = self._grid(one)
            found.append(_text(position, one.start - place))
            position += one.start - place
            grid = torch.stack([torch.zeros(one.count, dtype=torch.int64), *_meshed(rows, columns)])
            found.append(position + grid)
            place, position = one.end, position + max(rows, columns)
        return torch.cat([*found, _text(position, length - place)], dim=1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As ``CausalLM``, whichever version wrote the names."""
        super().load_weights((renamed(name, PREFIXES), tensor) for name, tensor in weights)

    def _grid(self, media: Media) -> tuple[int, int]:
        """Rows and columns of an image's tokens. Raises ``RequestError`` if they are not its places."""
        if not {GRID, PATCHES} <= media.arrays.keys():
            raise wrong_media(f"there are {', '.join(sorted(media.arrays)) or 'no arrays'}")
        time, height, width = upload_array(media.arrays[GRID], torch.device("cpu")).flatten().tolist()
        rows, columns = height // self.merge, width // self.merge
        if (
            time != 1
            or rows * columns != media.count
            or math.prod((time, height, width)) != media.arrays[PATCHES].shape[0]
        ):
            raise wrong_media(f"a grid of {time}, {height}, {width} patches has {media.count} places")
        return rows, columns


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: its tower looks through windows, but for a few layers."""

    tower = Qwen2_5_VisionTransformerPretrainedModel


def _text(first: int, count: int) -> Tensor:
    """``[3, count]``: positions from ``first`` on, three times."""
    return torch.arange(first, first + count).expand(3, -1)


def _meshed(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Row and column of each place of a grid, row by row."""
    return torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
