"""GPT-2 (Radford et al., 2019): learned positions, LayerNorm, and matrices stored the other way round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug import Attention, BuildEnv, ConfigError, ForwardBatch
from sglang_plug.layers import Embedding, Linear, activation
from sglang_plug_models.blocks import TransformerLM


class Conv1D(Linear):
    """``x @ weight + bias``: the checkpoint stores ``weight`` as ``[in, out]``."""

    plain = True

    def __init__(self, size_in: int, size_out: int, env: BuildEnv) -> None:
        super().__init__(size_in, size_out, env, bias=True)
        self.weight = nn.Parameter(torch.empty(size_in, size_out))

    def pack_weights(self) -> None:
        """Turn the weight round, then let the kernel set prepare it."""
        if self.weight is not None:
            self.weight = nn.Parameter(self.weight.detach().T.contiguous(), requires_grad=False)
            super().pack_weights()

    def _plain(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.linear(x, self.weight.T, self.bias)


class SelfAttention(nn.Module):
    """Query, key and value in one matrix; every head has keys of its own."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        width, self.heads = config.n_embd, config.n_head
        self.c_attn = Conv1D(width, 3 * width, env)
        self.c_proj = Conv1D(width, width, env)
        scale = (width // self.heads) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= index + 1
        self.attention = Attention(env, index, scale=scale)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        return self.c_proj(self.attention(q, k, v, batch).flatten(1))


class MLP(nn.Module):
    """One matrix up, an activation, one matrix down."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        width = config.n_inner or 4 * config.n_embd
        self.c_fc = Conv1D(config.n_embd, width, env)
        self.c_proj = Conv1D(width, config.n_embd, env)
        self.activation = activation(config.activation_function)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        return self.c_proj(self.activation(self.c_fc(x)))


class Layer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, index: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = SelfAttention(config, env, index)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config, env)

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        x = x + self.attn(self.ln_1(x), batch)
        return x + self.mlp(self.ln_2(x))


class Decoder(nn.Module):
    """Token and position embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.n_embd)
        self.wpe = Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList(Layer(config, env, index) for index in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token, ``[T, hidden]``."""
        x = self.wte(batch.input_ids) + self.wpe(batch.positions)
        for layer in self.h:
            x = layer(x, batch)
        found: Tensor = self.ln_f(x)
        return found


class GPT2(TransformerLM):
    """GPT-2 and its kin."""

    ignored = (".attn.bias", ".attn.masked_bias")  # masks that older checkpoints carry

    def __init__(self, config: Any, env: BuildEnv) -> None:
        if config.add_cross_attention:
            raise ConfigError("add_cross_attention is not supported: only GPT-2 models without an encoder are served")
        decoder = Decoder(config, env)
        super().__init__(config, env, decoder, decoder.wte)
