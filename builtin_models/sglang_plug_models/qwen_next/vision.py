"""Qwen3.5 with images: its decoder, positions in three rows, and transformers' part that reads images."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionModel

from sglang_plug import BuildEnv
from sglang_plug_models.grids import GridDecoder, GridVL, InterleavedGridRope

from .model import Qwen35, Qwen35Moe, norm


class PartlyTurnedRope(InterleavedGridRope):
    """Of a quarter of a head."""

    usual = (11, 11, 10)


class PartlyTurnedGrid(GridDecoder):
    """Rotates part of each head, and has Qwen3.5's norm at its end."""

    kind = PartlyTurnedRope

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers, norm=norm)


class Qwen35VL(GridVL, Qwen35):
    """Qwen3.5, dense."""

    tower, body = Qwen3_5VisionModel, PartlyTurnedGrid


class Qwen35MoeVL(GridVL, Qwen35Moe):
    """Qwen3.5 with experts."""

    tower, body = Qwen3_5MoeVisionModel, PartlyTurnedGrid
