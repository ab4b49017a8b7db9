"""OLMo Hybrid (Team OLMo, 2026): OLMo's attention in some layers, in the others gated DeltaNets that may turn states
round."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ForwardBatch, StateShape
from sglang_plug.layers import GatedRMSNorm, RMSNorm, ShortConv
from sglang_plug_models.blocks import Angles, CausalLM, Decoder, DecoderLayer
from sglang_plug_models.hybrid import Hybrid
from sglang_plug_models.olmo.model import Attention, Body, Layer
from sglang_plug_models.qwen_next.model import DeltaNet

norm = partial(RMSNorm, wide=True)
EPSILON = 1e-5
"""Of the norm on what comes of a state."""


class OlmoDeltaNet(DeltaNet):
    """A gated DeltaNet as OLMo stores it: queries, keys, values and gates have matrices of their own, and convolutions
    too in older checkpoints."""

    def __init__(self, config: Any, env: BuildEnv, state: int) -> None:
        super().__init__(config, env, state)
        parts = {"q": self.keys, "k": self.keys, "v": self.values}
        channels, width = sum(parts.values()), config.linear_conv_kernel_dim
        self.conv1d = ShortConv(channels, width, env, state, parts=parts)
        self.norm = GatedRMSNorm(self.dim, EPSILON)
        self.most = 2.0 if config.linear_allow_neg_eigval else 1.0

    def parts(self) -> dict[str, int]:
        """Rows of the matrices of its inputs."""
        return {"q": self.keys, "k": self.keys, "v": self.values, "g": self.values}

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As ``DeltaNet``."""
        qkv, gate = self.in_proj(x).split_with_sizes((2 * self.keys + self.values, self.values), dim=-1)
        rate, decay = self.rate_proj.split(x)
        return qkv, gate, rate, decay

    def rates(self, x: Tensor) -> Tensor:
        """As ``DeltaNet``, but up to 2 where states may be turned round."""
        return x.sigmoid() * self.most

    def place(self, rest: str) -> tuple[str, str | None]:
        """Our parameter and shard for a checkpoint's name below this module."""
        name, _, parameter = rest.partition(".")
        part = name[:1]
        if name in {f"{one}_proj" for one in self.parts()}:
            return f"in_proj.{parameter}", part
        if name in {f"{one}_proj" for one in self.rate_parts()}:
            return f"rate_proj.{parameter}", part
        if name in {"q_conv1d", "k_conv1d", "v_conv1d"}:
            return f"conv1d.{parameter}", part
        return {"o_proj.weight": "out_proj.weight", "o_norm.weight": "norm.weight"}.get(rest, rest), None


class OptionallyTurned(Attention):
    """OLMo's attention, which rotates nothing where the checkpoint has no positions."""

    def forward(self, x: Tensor, angles: Angles | None, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        if angles is not None:
            return super().forward(x, angles, batch)
        assert self.q_norm is not None and self.k_norm is not None
        q, k, v = self.qkv_proj.split(x)
        q, k, v = (one.unflatten(-1, (-1, self.dim)) for one in (self.q_norm(q), self.k_norm(k), v))
        return self.o_proj(self.attention(q, k, v, batch).flatten(1))


class RecurrentLayer(DecoderLayer):
    """A DeltaNet and an MLP, each on normalised input."""

    def __init__(self, config: Any, env: BuildEnv, mixer: nn.Module, mlp: nn.Module) -> None:
        super().__init__(config, env, mixer, mlp)
        self.input_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)
        self.post_attention_layernorm = norm(config.hidden_size, config.rms_norm_eps, env)


class OptionallyTurnedBody(Body):
    """OLMo's decoder, which may have no positions."""

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """What ``angles`` works with, if anything is rotated."""
        theta = (config.rope_parameters or {}).get("rope_theta")
        return nn.Identity() if theta is None else super().positions(config, env)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Angles | None:  # type: ignore[override]
        """Cosines and sines of ``positions`` ``[T]``, if anything is rotated."""
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
        """Of a DeltaNet."""
        return DeltaNet.shapes(config)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Everything but the head."""
        return OptionallyTurnedBody(config, env, layers, norm=norm)

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Layer ``index``, of the kind that ``layer_types`` says."""
        if not self.attends(config, index):
            net = OlmoDeltaNet(config, env, self.state_place(config, index))
            return RecurrentLayer(config, env, net, self.mlp(config, env, index))
        layer = Layer(config, env, index)
        layer.self_attn = OptionallyTurned(config, env, self.kv_place(config, index))
        return layer
