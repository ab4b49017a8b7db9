"""M-RoPE models: images take positions in three rows: time, row and column. Not a plugin.

Text has three equal positions; an image has those of its grid, and takes as many positions as its longer side has
tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray, SupportsImages, upload_array
from sglang_plug.layers import Rope

from .blocks import CausalLM, Decoder, head_dim
from .vision_encoder import VisionEncoder, decoder_config, media_error, renamed

PREFIXES: Mapping[str, str] = {
    "model.visual.": "visual.",
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""Name prefixes of later checkpoint versions -> those of the first."""
GRID, PATCHES = "image_grid_thw", "pixel_values"
"""Names of an image's arrays."""


class MRope(Rope):
    """M-RoPE angles: three rows of positions share a head's dimensions."""

    usual: ClassVar[tuple[int, int, int]] = (16, 24, 24)
    """Default sections for checkpoints that state none."""

    def __init__(self, dim: int, parameters: Mapping[str, Any], longest: int, served: int | None = None) -> None:
        super().__init__(dim, parameters, longest, served)
        self.sections: list[int] = list(parameters.get("mrope_section") or self.usual)
        if sum(self.sections) != len(self.inverse):
            raise ConfigError(f"mrope_section {self.sections} does not fit {len(self.inverse)} pairs of dimensions")

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of ``positions`` ``[T]`` or ``[3, T]``: two ``[T, width]`` in ``dtype``."""
        if positions.dim() == 1:
            return super().forward(positions, dtype)
        angles = self.mixed(positions[..., None].float() * self.inverse)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.factor).to(dtype), (angles.sin() * self.factor).to(dtype)

    def mixed(self, angles: Tensor) -> Tensor:
        """Select the row of ``[3, T, width / 2]`` for each dimension: consecutive sections."""
        parts = angles.split_with_sizes(self.sections, dim=-1)
        return torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)


class InterleavedMRope(MRope):
    """Interleaved M-RoPE: every third dimension is a row's, every third a column's; the rest is time's."""

    usual = (24, 20, 20)

    def mixed(self, angles: Tensor) -> Tensor:
        """Select the row of ``[3, T, width / 2]`` for each dimension."""
        result = angles[0].clone()
        for row in (1, 2):
            own = slice(row, 3 * self.sections[row], 3)
            result[..., own] = angles[row, ..., own]
        return result


class MRopeDecoder(Decoder):
    """A decoder whose positions have three rows in prompts with images."""

    kind: ClassVar[type[MRope]] = MRope

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return self.kind.of(config, head_dim(config), env.context_length)


class InterleavedMRopeDecoder(MRopeDecoder):
    """A decoder whose position rows alternate between dimensions."""

    kind = InterleavedMRope


class MRopeVL(CausalLM, SupportsImages):
    """A vision-language model with M-RoPE: a decoder with image embeddings. The family is another base class."""

    vision_encoder: type[nn.Module]
    body: ClassVar[type[MRopeDecoder]] = MRopeDecoder
    prefixes: ClassVar[Mapping[str, str]] = PREFIXES

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(self.decoder_config(config), env)
        self.merge = int(config.vision_config.spatial_merge_size)
        self.visual = VisionEncoder(self.vision_encoder(config.vision_config))

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Return the decoder's configuration."""
        return config.text_config

    @classmethod
    def decoder_config(cls, config: Any) -> Any:
        """Return the decoder's configuration, from which the layers are built."""
        return decoder_config(config)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return self.body(config, env, layers)

    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Encode the patches of all images at once: ``[count, hidden]`` for each."""
        weight = self.model.embed_tokens.weight
        patches = torch.cat([upload_array(image.arrays[PATCHES], weight.device) for image in media])
        grids = torch.cat([upload_array(image.arrays[GRID], weight.device) for image in media])
        result = self.image_embeddings(self.visual.body(patches.to(weight.dtype), grid_thw=grids))
        return result.split_with_sizes([image.count for image in media])

    def image_embeddings(self, output: Any) -> Tensor:
        """Return the vision encoder's output for all positions, concatenated."""
        embeddings: Tensor = output.pooler_output
        return embeddings

    def example(self, tokens: int) -> Media | None:
        """Return a square image."""
        side = math.isqrt(tokens)
        patches = (self.merge * side) ** 2
        numbers = self.visual.get_parameter("body.patch_embed.proj.weight")[0].numel()  # of each patch
        grid = array("q", (1, self.merge * side, self.merge * side)).tobytes()
        arrays = {
            PATCHES: MediaArray("float32", (patches, numbers), bytes(4 * patches * numbers)),
            GRID: MediaArray("int64", (1, 3), grid),
        }
        return Media(start=0, count=side**2, digest=b"", arrays=arrays)

    def mrope_positions(self, media: Sequence[Media], length: int) -> Tensor:
        """Return the M-RoPE positions ``[3, length]``: time, row and column."""
        position_rows, index, position = [], 0, 0
        for image in media:
            rows, columns = self._grid(image)
            position_rows.append(_text(position, image.start - index))
            position += image.start - index
            grid = torch.stack([torch.zeros(image.count, dtype=torch.int64), *_meshed(rows, columns)])
            position_rows.append(position + grid)
            index, position = image.end, position + max(rows, columns)
        return torch.cat([*position_rows, _text(position, length - index)], dim=1)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``, with the names of any version."""
        super().load_weights((renamed(name, self.prefixes), tensor) for name, tensor in weights)

    def _grid(self, media: Media) -> tuple[int, int]:
        """Return rows and columns of an image's tokens. Raises ``RequestError`` if they do not match its positions."""
        if not {GRID, PATCHES} <= media.arrays.keys():
            raise media_error(f"there are {', '.join(sorted(media.arrays)) or 'no arrays'}")
        time, height, width = upload_array(media.arrays[GRID], torch.device("cpu")).flatten().tolist()
        rows, columns = height // self.merge, width // self.merge
        if (
            time != 1
            or rows * columns != media.count
            or math.prod((time, height, width)) != media.arrays[PATCHES].shape[0]
        ):
            raise media_error(f"a grid of {time}, {height}, {width} patches has {media.count} tokens")
        return rows, columns


def _text(first: int, count: int) -> Tensor:
    """Return ``[3, count]`` positions from ``first`` on, three equal rows."""
    return torch.arange(first, first + count).expand(3, -1)


def _meshed(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return row and column of each position of a grid, row by row."""
    return torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
