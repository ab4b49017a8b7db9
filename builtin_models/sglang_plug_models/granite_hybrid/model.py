"""Granite 4 (IBM, 2025).

Layers have attention or a Mamba-2 mixer; each has an MLP, and experts next to it if the model has any. Attention has no
positions unless the checkpoint says so. Embeddings, outputs of layers, and logits are scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import GateUpLinear, RMSNorm, RowParallelLinear
from sglang_plug_models.common.blocks import Decoder, SelfAttention
from sglang_plug_models.common.hybrid import Hybrid, NoRopeAttention, NoRopeDecoder
from sglang_plug_models.common.state_space import mamba2_of, mamba2_shape
from sglang_plug_models.moe.block import SparseMLP, router

NAMES: Mapping[str, str] = {
    "input_linear.weight": "experts.gate_up_proj.weight",
    "experts.gate_up_proj": "experts.gate_up_proj.weight",
    "output_linear.weight": "experts.down_proj.weight",
    "experts.down_proj": "experts.down_proj.weight",
    "router.layer.weight": "gate.weight",
    "router.weight": "gate.weight",
}
"""Checkpoint names of the parts of a layer's experts, in their older and newer spelling."""


class Experts(SparseMLP):
    """All experts' matrices in two tensors."""

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our parameter for a checkpoint's name below this module."""
        return NAMES.get(rest, rest), None


class SharedMLP(nn.Module):
    """An MLP whose gate is stored on top of the gated half."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = config.shared_intermediate_size
        self.input_linear = GateUpLinear(config.hidden_size, width, env, activation_name=config.hidden_act)
        self.output_linear = RowParallelLinear(width, config.hidden_size, env)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.output_linear(self.input_linear(x))


class Layer(nn.Module):
    """Attention or a Mamba-2 mixer, then the MLP and the experts, with scaled outputs."""

    def __init__(self, config: Any, env: BuildEnv, index: int, mixer: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.self_attn = mixer if isinstance(mixer, SelfAttention) else None
        self.mamba = None if isinstance(mixer, SelfAttention) else mixer
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.shared_mlp = SharedMLP(config, env)
        self.block_sparse_moe = None
        if config.num_local_experts:
            gate = router(config, env, index, experts=config.num_local_experts, normalise=True)
            self.block_sparse_moe = Experts(config, env, gate, width=config.intermediate_size)
        self.scale = config.residual_multiplier

    def forward(self, x: Tensor, residual: Tensor | None, angles: Any, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.input_layernorm.add(x, residual)
        mixer = self.mamba if self.self_attn is None else self.self_attn
        assert mixer is not None
        normed, residual = self.post_attention_layernorm.add(mixer(normed, angles, batch) * self.scale, residual)
        result = self.shared_mlp(normed)
        if self.block_sparse_moe is not None:
            result = result + self.block_sparse_moe(normed)
        return result * self.scale, residual


class Scaled(Decoder):
    """A decoder with scaled embeddings."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> None:
        super().__init__(config, env, layers)
        self.scale = config.embedding_multiplier

    def embed(self, tokens: Tensor) -> Tensor:
        """Map ``[T]`` to ``[T, hidden]``."""
        return super().embed(tokens) * self.scale


class NoRopeScaledDecoder(NoRopeDecoder, Scaled):
    """A decoder with scaled embeddings and no positions."""


class GraniteHybrid(Hybrid):
    """Granite 4, hybrid or not, dense or not."""

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a Mamba-2 mixer."""
        return mamba2_shape(config).states

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return (Scaled if config.position_embedding_type == "rope" else NoRopeScaledDecoder)(config, env, layers)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        mixer = self.attention if self.has_attention(config, index) else self.mamba
        return Layer(config, env, index, mixer(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the attention of layer ``index``."""
        kind = SelfAttention if config.position_embedding_type == "rope" else NoRopeAttention
        bias = config.attention_bias
        layer_index, scale = self.kv_layer_index(config, index), config.attention_multiplier
        return kind(config, env, layer_index, qkv_bias=bias, out_bias=bias, scale=scale)

    def mamba(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the mixer of layer ``index``."""
        return mamba2_of(config, env, self.state_index(config, index))

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return super().head(hidden) / self.config.logits_scaling
