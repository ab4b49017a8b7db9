"""Qwen2-VL (Wang et al., 2024), Qwen2.5-VL (Bai et al., 2025) and Qwen3-VL (Qwen team, 2025).

The decoders are Qwen2's and Qwen3's with M-RoPE. Qwen3-VL adds outputs of earlier layers of its vision encoder, its
DeepStack embeddings, to the hidden states after the decoder's first layers. The vision encoder is transformers' own.
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

from sglang_plug import BuildEnv, ForwardBatch, WeightError
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
    """A layer that adds DeepStack embeddings of images to its output.

    Args:
        config: the decoder's configuration.
        env: the environment in which the model is built.
        attention: the layer's attention.
        mlp: the layer's MLP.
        deepstack_index: index of the DeepStack embeddings that the layer adds, from 1 on.
    """

    def __init__(
        self, config: Any, env: BuildEnv, attention: nn.Module, mlp: nn.Module, *, deepstack_index: int
    ) -> None:
        super().__init__(config, env, attention, mlp)
        self.deepstack_index = deepstack_index

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Run the layer like ``DecoderLayer`` and add the DeepStack embeddings."""
        x, residual = super().forward(x, residual, angles, batch)
        if batch.multimodal is not None:
            x = batch.multimodal.add_deepstack(x, self.deepstack_index)
        return x, residual


class DeepstackVL(MRopeVL):
    """``MRopeVL`` whose vision encoder also returns DeepStack embeddings, for the first layers of the decoder."""

    body = InterleavedMRopeDecoder

    @classmethod
    def decoder_config(cls, config: Any) -> Any:
        """Return the decoder's configuration, with the number of its layers that add DeepStack embeddings."""
        result = super().decoder_config(config)
        result.num_deepstack_layers = len(config.vision_config.deepstack_visual_indexes)
        return result

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        parts = self.attention(config, env, index), self.mlp(config, env, index)
        if index < config.num_deepstack_layers:
            return DeepstackLayer(config, env, *parts, deepstack_index=index + 1)
        return DecoderLayer(config, env, *parts)

    def image_embeddings(self, output: Any) -> Tensor:
        """Return the embeddings and the DeepStack embeddings as ``[tokens, 1 + n, hidden]``."""
        return torch.stack([output.pooler_output, *output.deepstack_features], dim=1)


class Qwen3VL(DeepstackVL, Qwen3):
    """Qwen3-VL, dense."""

    vision_encoder = Qwen3VLVisionModel


class Qwen3VLMoe(DeepstackVL, Qwen3Moe):
    """Qwen3-VL with experts."""

    vision_encoder = Qwen3VLMoeVisionModel

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``MRopeVL``; published checkpoints have the experts' matrices transposed."""
        super().load_weights((name, self._in_loaded_layout(name, tensor)) for name, tensor in weights)

    def _in_loaded_layout(self, name: str, tensor: Tensor) -> Tensor:
        """Return the experts' matrices as ``[experts, outputs, inputs]``, and any other tensor as it is.

        Raises ``WeightError`` for square matrices, which do not show whether they are transposed.
        """
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            return tensor
        wide, narrow = self.config.hidden_size, self.config.moe_intermediate_size
        outputs, inputs = (2 * narrow, wide) if name.endswith("gate_up_proj") else (wide, narrow)
        if outputs == inputs:
            raise WeightError(
                f"{name!r}: the experts' matrices are square ({outputs} x {inputs}), so it is unknown whether the "
                "checkpoint stores them transposed; Qwen3-VL models of such sizes are not supported"
            )
        return tensor.transpose(1, 2) if tensor.shape[1:] == (inputs, outputs) else tensor
