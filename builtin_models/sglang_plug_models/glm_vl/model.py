"""GLM-4.1V and GLM-4.5V (GLM-V team, 2025): GLM-4 and GLM-4.5 whose images take positions in three rows.

The part that reads images is transformers' own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionModel
from transformers.models.glm4v_moe.modeling_glm4v_moe import Glm4vMoeVisionModel

from sglang_plug import BuildEnv
from sglang_plug_models.glm.model import Glm4
from sglang_plug_models.glm.moe import Glm4Moe
from sglang_plug_models.grids import GridDecoder, GridRope, GridVL
from sglang_plug_models.paired import PairedAttention


class GlmGridRope(GridRope):
    """The usual sections are others."""

    usual = (8, 12, 12)


class GlmGridDecoder(GridDecoder):
    """Heads may be turned in part."""

    kind = GlmGridRope


class Glm4v(GridVL, Glm4):
    """GLM-4.1V."""

    tower = Glm4vVisionModel
    body = GlmGridDecoder

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Always with biases on queries, keys and values."""
        return PairedAttention(config, env, index, qkv_bias=True)


class Glm4vMoe(GridVL, Glm4Moe):
    """GLM-4.5V."""

    tower = Glm4vMoeVisionModel
    body = GlmGridDecoder
