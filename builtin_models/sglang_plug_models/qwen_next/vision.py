"""Qwen3.5 with images: its decoder, M-RoPE, and transformers' vision encoder."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionModel

from sglang_plug import BuildEnv
from sglang_plug_models.common.mrope import InterleavedMRope, MRopeDecoder, MRopeVL

from .model import Qwen35, Qwen35Moe, norm


class PartialMRope(InterleavedMRope):
    """M-RoPE over a quarter of a head."""

    usual = (11, 11, 10)


class PartialMRopeDecoder(MRopeDecoder):
    """A decoder that rotates part of each head and ends with Qwen3.5's norm."""

    kind = PartialMRope

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers, norm=norm)


class Qwen35VL(MRopeVL, Qwen35):
    """Qwen3.5, dense."""

    vision_encoder, body = Qwen3_5VisionModel, PartialMRopeDecoder


class Qwen35MoeVL(MRopeVL, Qwen35Moe):
    """Qwen3.5 with experts."""

    vision_encoder, body = Qwen3_5MoeVisionModel, PartialMRopeDecoder
