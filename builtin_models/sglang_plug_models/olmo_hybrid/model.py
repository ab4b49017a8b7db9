"""OLMo Hybrid (Team OLMo, 2026): OLMo attention in some layers, gated DeltaNets in the others.

The DeltaNets may have negative eigenvalues.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import GatedRMSNorm, RMSNorm, ShortConv
from sglang_plug_models.common.blocks import Angles, CausalLM, Decoder, DecoderLayer
from sglang_plug_models.common.hybrid import Hybrid
from sglang_plug_models.olmo.model import Attention, Body, Layer
from sglang_plug_models.qwen_next.model import DeltaNet

norm = partial(RMSNorm, wide=True)
EPSILON = 1e-5
"""Epsilon of the norm on a state's output."""


class OlmoDeltaNet(DeltaNet):
    """A gated DeltaNet in OLMo's layout: queries, keys, values and gates have separate matrices.

    Checkpoints have one convolution for all channels, or three tensors: those of queries, keys and values, or what
    transformers saves under the same names, three pieces of equal size.
    """

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__(config, env, state)
        parts = {"q": self.keys, "k": self.keys, "v": self.values}
        channels, width = sum(parts.values()), config.linear_conv_kernel_dim
        self.conv1d = ShortConv(channels, width, env, state, parts=parts)
        self.norm = GatedRMSNorm(self.dim, EPSILON)
        self.max_rate = 2.0 if config.linear_allow_neg_eigval else 1.0

    def parts(self) -> dict[str, int]:
        """Return the rows of the matrices of its inputs."""
        return {"q": self.keys, "k": self.keys, "v": self.values, "g": self.values}

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the inputs like ``DeltaNet``."""
        qkv, gate = self.in_proj(x).split_with_sizes((2 * self.keys + self.values, self.values), dim=-1)
        rate, decay = self.rate_proj.split(x)
        return qkv, gate, rate, decay

    def rates(self, x: Tensor) -> Tensor:
        """Compute the rates like ``DeltaNet``, but up to 2 if negative eigenvalues are allowed."""
        return x.sigmoid() * self.max_rate

    def map_weight_name(self, rest: str) -> tuple[str, str | None]:
        """Return our parameter and shard for a checkpoint's name below this module."""
        name, _, parameter = rest.partition(".")
        part = name[:1]
        if name in {f"{part}_proj" for part in self.parts()}:
            return f"in_proj.{parameter}", part
        if name in {f"{rate_part}_proj" for rate_part in self.rate_parts()}:
            return f"rate_proj.{parameter}", part
        if name in {"q_conv1d", "k_conv1d", "v_conv1d"}:
            return f"conv1d.{parameter}", part
        return {"o_proj.weight": "out_proj.weight", "o_norm.weight": "norm.weight"}.get(rest, rest), None


class OptionalRopeAttention(Attention):
    """OLMo attention, without rotation if the checkpoint has no positions."""

    def forward(self, x: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        if angles is not None:
            return super().forward(x, angles, batch)
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = self.qkv_proj.split(x)
        q, k, v = (tensor.unflatten(-1, (-1, self.dim)) for tensor in (self.q_norm(q), self.k_norm(k), v))
        return self.o_proj(self.attention(q, k, v, batch).flatten(1))


class RecurrentLayer(DecoderLayer):
    """A DeltaNet and an MLP, each on normalised input."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config, env, mixer, mlp)
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)


class OptionalRopeDecoder(Body):
    """OLMo's decoder with optional positions."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed, if anything is rotated."""
        theta = (config.rope_parameters or {}).get("rope_theta")
        return nn.Identity() if theta is None else super().positions(config, env)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles | None:  # type: ignore[override]
        """Return the cosines and sines of ``positions`` ``[T]``, if anything is rotated."""
        return None if isinstance(self.rope, nn.Identity) else super().angles(positions, dtype)


class OlmoHybrid(Hybrid):
    """OLMo Hybrid."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        **CausalLM.packed,
        "linear_attn": ("self_attn", None),
        "attention_layer_norm": ("input_layernorm", None),
        "feedforward_layer_norm": ("post_attention_layernorm", None),
    }

    @classmethod
    def layer_states(cls, config: Any) -> tuple[StateShape, ...]:
        """Return the state shapes of a DeltaNet."""
        return DeltaNet.shapes(config)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return OptionalRopeDecoder(config, env, layers, norm=norm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index`` of the kind in ``layer_types``."""
        if not self.has_attention(config, index):
            net = OlmoDeltaNet(config, env, self.state_index(config, index))
            return RecurrentLayer(config, env, net, self.mlp(config, env, index))
        layer = Layer(config, env, index)
        layer.self_attn = OptionalRopeAttention(config, env, self.kv_layer_index(config, index))
        return layer
