"""GLM-4.1V and GLM-4.5V (GLM-V team, 2025): GLM-4 and GLM-4.5 with M-RoPE positions of images.

The vision encoder is transformers' own.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionModel
from transformers.models.glm4v_moe.modeling_glm4v_moe import Glm4vMoeVisionModel

from sglang_plug import BuildEnv
from sglang_plug_models.common.interleaved_rope import InterleavedRopeAttention
from sglang_plug_models.common.mrope import MRope, MRopeDecoder, MRopeVL
from sglang_plug_models.glm.model import Glm4
from sglang_plug_models.glm.moe import Glm4Moe


class GlmMRope(MRope):
    """M-RoPE with GLM's default sections."""

    usual = (8, 12, 12)


class GlmMRopeDecoder(MRopeDecoder):
    """A decoder that may rotate part of each head."""

    kind = GlmMRope


class Glm4v(MRopeVL, Glm4):
    """GLM-4.1V."""

    vision_encoder = Glm4vVisionModel
    body = GlmMRopeDecoder

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with biases on queries, keys and values."""
        return InterleavedRopeAttention(config, env, index, qkv_bias=True)


class Glm4vMoe(MRopeVL, Glm4Moe):
    """GLM-4.5V."""

    vision_encoder = Glm4vMoeVisionModel
    body = GlmMRopeDecoder
