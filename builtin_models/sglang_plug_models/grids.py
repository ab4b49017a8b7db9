"""Models whose images take positions in three rows: time, row and column. Not a plugin.

Text has three equal positions; an image has its grid's, and takes as many positions as its longer side has tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, Media, MediaArray, Seeing
from sglang_plug.layers import Rope
from sglang_plug.transfer import upload_array
from sglang_plug_models.blocks import CausalLM, Decoder, head_dim
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

    usual: ClassVar[tuple[int, int, int]] = (16, 24, 24)
    """Sections of checkpoints that do not say."""

    def __init__(self, dim: int, parameters: Mapping[str, Any], longest: int, served: int | None = None) -> None:
        super().__init__(dim, parameters, longest, served)
        self.sections: list[int] = list(parameters.get("mrope_section") or self.usual)
        if sum(self.sections) != len(self.inverse):
            raise ConfigError(f"mrope_section {self.sections} does not fit {len(self.inverse)} pairs of dimensions")

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``positions`` ``[T]``, or ``[3, T]``: two ``[T, width]`` in ``dtype``."""
        if positions.dim() == 1:
            return super().forward(positions, dtype)
        angles = self.mixed(positions[..., None].float() * self.inverse)
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * self.factor).to(dtype), (angles.sin() * self.factor).to(dtype)

    def mixed(self, angles: Tensor) -> Tensor:
        """Of ``[3, T, width / 2]``, which row each dimension takes: sections one after the other."""
        parts = angles.split_with_sizes(self.sections, dim=-1)
        return torch.cat([part[index % 3] for index, part in enumerate(parts)], dim=-1)


class InterleavedGridRope(GridRope):
    """Every third dimension is a row's, every third a column's, as far as their sections go; the rest is time's."""

    usual = (24, 20, 20)

    def mixed(self, angles: Tensor) -> Tensor:
        """Of ``[3, T, width / 2]``, which row each dimension takes."""
        found = angles[0].clone()
        for row in (1, 2):
            own = slice(row, 3 * self.sections[row], 3)
            found[..., own] = angles[row, ..., own]
        return found


class GridDecoder(Decoder):
    """A decoder whose positions have three rows where there are images."""

    kind: ClassVar[type[GridRope]] = GridRope

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """What ``angles`` works with."""
        return self.kind.of(config, head_dim(config), env.context_length)


class InterleavedGridDecoder(GridDecoder):
    """Rows take turns with each dimension."""

    kind = InterleavedGridRope


class GridVL(CausalLM, Seeing):
    """A decoder that is given what a tower sees, with positions in three rows. Another base is its family."""

    tower: type[nn.Module]
    body: ClassVar[type[GridDecoder]] = GridDecoder

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
        return self.body(config, env, layers)

    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """The images' patches through the tower, all at once: ``[count, hidden]`` for each."""
        weight = self.model.embed_tokens.weight
        patches = torch.cat([upload_array(one.arrays[PATCHES], weight.device) for one in media])
        grids = torch.cat([upload_array(one.arrays[GRID], weight.device) for one in media])
        found = self.states(self.visual.body(patches.to(weight.dtype), grid_thw=grids))
        return found.split_with_sizes([one.count for one in media])

    def states(self, output: Any) -> Tensor:
        """What the tower's output says of all places, one after the other."""
        found: Tensor = output.pooler_output
        return found

    def example(self, tokens: int) -> Media | None:
        """A square image."""
        side = math.isqrt(tokens)
        patches = (self.merge * side) ** 2
        numbers = self.visual.get_parameter("body.patch_embed.proj.weight")[0].numel()  # of each patch
        grid = array("q", (1, self.merge * side, self.merge * side)).tobytes()
        arrays = {
            PATCHES: MediaArray("float32", (patches, numbers), bytes(4 * patches * numbers)),
            GRID: MediaArray("int64", (1, 3), grid),
        }
        return Media(start=0, count=side**2, digest=b"", arrays=arrays)

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


def _text(first: int, count: int) -> Tensor:
    """``[3, count]``: positions from ``first`` on, three times."""
    return torch.arange(first, first + count).expand(3, -1)


def _meshed(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Row and column of each place of a grid, row by row."""
    return torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
