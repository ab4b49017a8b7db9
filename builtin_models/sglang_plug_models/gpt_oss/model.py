"""gpt-oss (OpenAI, 2025): attention with sinks, with a window in every second layer, and experts with biases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, shard_slice
from sglang_plug.layers.linear import checked
from sglang_plug_models.common.blocks import Angles, CausalLM, SelfAttention, window_of

from .experts import BiasedExperts, ChosenRouter

STORED = ("blocks", "scales")
"""Suffixes of all experts' tensors in MXFP4 checkpoints."""


class SinkAttention(SelfAttention):
    """Attention with a learned sink per head, which takes part in the softmax."""

    sinks: Tensor

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        bias = config.attention_bias
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias, window=window_of(config, index))
        self._all = config.num_attention_heads
        self._own = shard_slice(self._all, env.ranks, label="heads")
        self.sinks = nn.Parameter(torch.empty(self.heads))

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        qk, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        q, k = self._rope(qk, *angles).tensor_split((self.heads,), dim=1)
        return self.o_proj(self.attention.with_sinks(q, k, v, self.sinks, batch).flatten(1))

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return the shape of the sinks of all ranks' heads."""
        return (self._all,)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the sinks of this rank's heads. Raises ``ValueError`` for another shape."""
        parameter.copy_(checked(tensor, (self._all,))[self._own])


class SparseMLP(nn.Module):
    """A router and its experts."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.router = ChosenRouter(config, env, index)
        self.experts = BiasedExperts(config, env)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        result: Tensor = self.experts(x, *self.router.choose(x))
        return result


class GptOss(CausalLM):
    """gpt-oss."""

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry with sinks."""
        return replace(super().attention_shape(config), sinks=True)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build attention with a window if ``layer_types`` says so."""
        return SinkAttention(config, env, index)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build experts in every layer."""
        return SparseMLP(config, env, index)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``CausalLM``; experts' matrices are transposed, and gates separated from the gated half."""
        CausalLM.load_weights(self, (weight for name, tensor in weights for weight in arranged(name, tensor)))


def arranged(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Rearrange a checkpoint's tensor for our layers; quantized ones are split by expert."""
    path, _, last = name.rpartition(".mlp.experts.")
    matrix, _, kind = last.rpartition("_")
    if path and kind in STORED:
        parts = {"gate": tensor[:, ::2], "up": tensor[:, 1::2]} if matrix == "gate_up_proj" else {"down": tensor}
        for part, rows in parts.items():
            for number, row in enumerate(rows):
                yield f"{path}.mlp.experts.{number}.{part}.{kind}", row
        return
    if path and tensor.dim() == 3:
        tensor = tensor.transpose(1, 2)
    if path and last.startswith("gate_up_proj"):
        tensor = torch.cat((tensor[:, ::2], tensor[:, 1::2]), dim=1)
    yield name, tensor
