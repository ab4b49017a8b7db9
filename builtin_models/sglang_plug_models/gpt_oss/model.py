"""gpt-oss (OpenAI, 2025): attention with sinks, in every second layer within a window, and experts with biases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch
from sglang_plug.executor import own_slice
from sglang_plug.layers.linear import checked
from sglang_plug_models.blocks import Angles, CausalLM, SelfAttention, window_of
from sglang_plug_models.moe.block import ExpertsCausalLM

from .experts import BiasedExperts, ChosenRouter

STORED = ("blocks", "scales")
"""What checkpoints in MXFP4 hold of all experts, behind a matrix's name."""


class SinkAttention(SelfAttention):
    """Every head may look at nothing, as much as it has learned to."""

    sinks: Tensor

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        bias = config.attention_bias
        super().__init__(config, env, index, qkv_bias=bias, out_bias=bias, window=window_of(config, index))
        self._all = config.num_attention_heads
        self._own = own_slice(self._all, env.ranks, what="heads")
        self.sinks = nn.Parameter(torch.empty(self.heads))

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        turned, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
        q, k = self._rope(turned, *angles).tensor_split((self.heads,), dim=1)
        return self.o_proj(self.attention.with_sinks(q, k, v, self.sinks, batch).flatten(1))

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """A number for each head of all ranks."""
        return (self._all,)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy the sinks of this rank's heads. Raises ``ValueError`` if there are others."""
        parameter.copy_(checked(tensor, (self._all,))[self._own])


class SparseMLP(nn.Module):
    """A router and its experts."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.router = ChosenRouter(config, env, index)
        self.experts = BiasedExperts(config, env)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        found: Tensor = self.experts(x, *self.router.choose(x))
        return found


class GptOss(ExpertsCausalLM):
    """gpt-oss."""

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """With sinks."""
        return replace(super().attention_shape(config), sinks=True)

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Within a window where ``layer_types`` says so."""
        return SinkAttention(config, env, index)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Experts everywhere."""
        return SparseMLP(config, env, index)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As ``CausalLM``; experts' matrices are turned, and gates separated from what they weigh."""
        CausalLM.load_weights(self, (one for name, tensor in weights for one in arranged(name, tensor)))


def arranged(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A checkpoint's tensor as our layers have it; what is stored in codes becomes one for each expert."""
    path, _, last = name.rpartition(".mlp.experts.")
    matrix, _, kind = last.rpartition("_")
    if path and kind in STORED:
        parts = {"gate": tensor[:, ::2], "up": tensor[:, 1::2]} if matrix == "gate_up_proj" else {"down": tensor}
        for part, rows in parts.items():
            for number, one in enumerate(rows):
                yield f"{path}.mlp.experts.{number}.{part}.{kind}", one
        return
    if path and tensor.dim() == 3:
        tensor = tensor.transpose(1, 2)
    if path and last.startswith("gate_up_proj"):
        tensor = torch.cat((tensor[:, ::2], tensor[:, 1::2]), dim=1)
    yield name, tensor
