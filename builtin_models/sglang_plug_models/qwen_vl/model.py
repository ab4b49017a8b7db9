"""Qwen2-VL (Wang et al., 2024), Qwen2.5-VL (Bai et al., 2025) and Qwen3-VL (Qwen team, 2025).

The decoders are Qwen2's and Qwen3's with M-RoPE. Qwen3-VL adds outputs of earlier layers of its vision encoder to the
states after the decoder's first layers. The vision encoder is transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel

from sglang_plug import BuildEnv, ForwardBatch
from sglang_plug_models.common.blocks import Angles, DecoderLayer
from sglang_plug_models.common.mrope import InterleavedMRopeDecoder, MRopeVL
from sglang_plug_models.moe.qwen_moe import Qwen3Moe
from sglang_plug_models.qwen.qwen2 import Qwen2
from sglang_plug_models.qwen.qwen3 import Qwen3


class Qwen2VL(MRopeVL, Qwen2):
    """Qwen2-VL."""

    vision_encoder = Qwen2VisionTransformerPretrainedModel


class Qwen25VL(Qwen2VL):
    """Qwen2.5-VL: most layers of its vision encoder have windowed attention."""

    vision_encoder = Qwen2_5_VisionTransformerPretrainedModel


class DeepstackLayer(DecoderLayer):
    """A layer that may add further image states to its output."""

    further: int = 0
    """Index of the further states; 0: none."""

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Run the layer like ``DecoderLayer`` and add the further states."""
        x, residual = super().forward(x, residual, angles, batch)
        if batch.multimodal is not None and self.further:
            x = batch.multimodal.add_deepstack(x, self.further)
        return x, residual


class DeepstackVL(MRopeVL):
    """``MRopeVL`` whose vision encoder returns further states for the first layers."""

    body = InterleavedMRopeDecoder

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        layers: Iterable[Any] = self.model.layers
        for layer, index in zip(layers, range(len(config.vision_config.deepstack_visual_indexes)), strict=False):
            layer.further = index + 1

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return DeepstackLayer(config, env, self.attention(config, env, index), self.mlp(config, env, index))

    def states(self, output: Any) -> Tensor:
        """Return the states as ``[tokens, 1 + n, hidden]``."""
        return torch.stack([output.pooler_output, *output.deepstack_features], dim=1)


class Qwen3VL(DeepstackVL, Qwen3):
    """Qwen3-VL, dense."""

    vision_encoder = Qwen3VLVisionModel


class Qwen3VLMoe(DeepstackVL, Qwen3Moe):
    """Qwen3-VL with experts."""

    vision_encoder = Qwen3VLMoeVisionModel

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``MRopeVL``; published checkpoints have the experts' matrices transposed."""
        super().load_weights((name, self._upright(name, tensor)) for name, tensor in weights)

    def _upright(self, name: str, tensor: Tensor) -> Tensor:
        """Transpose an expert's matrices to our layout."""
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            return tensor
        wide, narrow = self.config.hidden_size, self.config.moe_intermediate_size
        ours = (2 * narrow, wide) if name.endswith("gate_up_proj") else (wide, narrow)
        return tensor.transpose(1, 2) if tensor.shape[1:] == ours[::-1] != ours else tensor
