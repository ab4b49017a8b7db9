"""Blocks shared by decoder families. Not a plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug import Attention, BuildEnv, ForwardBatch, Model
from sglang_plug.layers import (
    Embedding,
    GateUpLinear,
    MergedColumnParallelLinear,
    ParallelLMHead,
    RMSNorm,
    Rope,
    RowParallelLinear,
)

Angles = tuple[Tensor, Tensor]
"""Cosines and sines of this step's positions."""
NormBuilder = Callable[[int, float, BuildEnv], RMSNorm]
"""Constructor of a norm from width, epsilon and build environment."""


def head_dim(config: Any) -> int:
    """Return the width of one attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def norm_epsilon(config: Any) -> float:
    """Return RMSNorm's epsilon, which configurations name differently."""
    names = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    return next(float(result) for name in names if (result := getattr(config, name, None)) is not None)


def window_of(config: Any, index: int) -> int | None:
    """Return the number of tokens that layer ``index`` attends to, including the current one; ``None``: all."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and kinds[index] != "sliding_attention":
        return None
    if not getattr(config, "use_sliding_window", True):
        return None
    window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions and optional biases and query/key norms."""

    def __init__(
        self,
        config: Any,
        env: BuildEnv,
        index: int,
        *,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        norm: NormBuilder = RMSNorm,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.dim = head_dim(config)
        heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", config.num_attention_heads)
        of_parts = {"q": heads, "k": kv_heads, "v": kv_heads}
        parts = {name: count * self.dim for name, count in of_parts.items()}
        self.qkv_proj = MergedColumnParallelLinear(config.hidden_size, parts, env, bias=qkv_bias, heads=of_parts)
        self.o_proj = RowParallelLinear(heads * self.dim, config.hidden_size, env, bias=out_bias)
        self.heads, self.kv_heads = heads // env.ranks.size, max(1, kv_heads // env.ranks.size)
        self.q_norm = norm(self.dim, norm_epsilon(config), env) if qk_norm else None
        self.k_norm = norm(self.dim, norm_epsilon(config), env) if qk_norm else None
        scale = self.dim**-0.5 if scale is None else scale
        self.attention = Attention(env, index, scale=scale, window=window, softcap=softcap)
        self._rope = env.kernels.apply_rope
        # Queries and keys are contiguous, so that one call can rotate both.
        self._rotates_q_and_k_together = not qk_norm and not self.attention.fuses_rope

    def forward(self, x: Tensor, angles: Angles, batch: ForwardBatch) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        qkv = self.qkv_proj(x).view(-1, self.heads + 2 * self.kv_heads, self.dim)
        if self._rotates_q_and_k_together:
            qk, v = qkv.tensor_split((self.heads + self.kv_heads,), dim=1)
            q, k = self._rope(qk, *angles).tensor_split((self.heads,), dim=1)
            return self.o_proj(self.attention(q, k, v, batch).flatten(1))
        q, k, v = qkv.tensor_split((self.heads, self.heads + self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(self.attention.rotary(q, k, v, *angles, batch).flatten(1))


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))``; the activation is the checkpoint's ``hidden_act`` if not given."""

    def __init__(
        self,
        config: Any,
        env: BuildEnv,
        *,
        bias: bool = False,
        width: int | None = None,
        activation: str | None = None,
    ) -> None:
        super().__init__()
        width = config.intermediate_size if width is None else width
        name = activation or config.hidden_act
        self.gate_up_proj = GateUpLinear(config.hidden_size, width, env, activation_name=name, bias=bias)
        self.down_proj = RowParallelLinear(width, config.hidden_size, env, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[T, hidden]`` to ``[T, hidden]``."""
        return self.down_proj(self.gate_up_proj(x))


class DecoderLayer(nn.Module):
    """Attention and MLP, each on normalised input and added to the residual stream."""

    def __init__(self, config: Any, env: BuildEnv, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, env)
        self.mlp = mlp

    def forward(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual stream to add it to, both ``[T, hidden]``."""
        normed, residual = self.input_layernorm.add(x, residual)
        normed, residual = self.post_attention_layernorm.add(self.self_attn(normed, angles, batch), residual)
        return self.mlp(normed), residual


class Decoder(nn.Module):
    """Embeddings, layers, and the last norm."""

    def __init__(self, config: Any, env: BuildEnv, layers: list[nn.Module], *, norm: NormBuilder = RMSNorm) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, env)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(config.hidden_size, norm_epsilon(config), env)
        self.rope = self.positions(config, env)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        x, residual = self.embed(batch.input_ids), None
        positions = batch.positions
        if (multimodal := batch.multimodal) is not None:
            x = multimodal.merge_embeddings(x)
            positions = positions if multimodal.mrope_positions is None else multimodal.mrope_positions
        angles = self.angles(positions, x.dtype)
        for layer in self.layers:
            x, residual = layer(x, residual, angles, batch)
        return self.norm.add(x, residual)[0]

    def positions(self, config: Any, env: BuildEnv) -> nn.Module:
        """Return the tables from which ``angles`` are computed."""
        return Rope.of(config, head_dim(config), env.context_length, whole=True)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed ``[T]`` to ``[T, hidden]``, the input of the first layer."""
        result: Tensor = self.embed_tokens(tokens)
        return result

    def angles(self, positions: Tensor, dtype: torch.dtype) -> Any:
        """Return the position data of all layers for ``positions`` ``[T]``, or ``[R, T]`` in M-RoPE models."""
        return self.rope(positions, dtype)


class CausalLM(Model):
    """A decoder with a language-model head. Subclasses define the parts of its layers."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", "gate"),
        "up_proj": ("gate_up_proj", "up"),
    }
    prefixes: ClassVar[Mapping[str, str]] = {"": "model."}
    ignored: ClassVar[tuple[str, ...]] = ("rotary_emb.inv_freq",)

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.model = self.decoder(config, env, self.layers(config, env))
        self.input_embeds_width = config.hidden_size
        tied = self.model.embed_tokens if config.tie_word_embeddings else None
        if "generate" in env.tasks:
            self.lm_head = ParallelLMHead(config.hidden_size, config.vocab_size, env, tied=tied)

    def decoder(self, config: Any, env: BuildEnv, layers: list[nn.Module]) -> Decoder:
        """Build the decoder without the head."""
        return Decoder(config, env, layers)

    def layers(self, config: Any, env: BuildEnv) -> list[nn.Module]:
        """Build all layers."""
        return [self.layer(config, env, index) for index in range(config.num_hidden_layers)]

    def layer(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build layer ``index``."""
        return DecoderLayer(config, env, self.attention(config, env, index), self.mlp(config, env, index))

    def attention(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the attention of layer ``index``."""
        return SelfAttention(config, env, index)

    def mlp(self, config: Any, env: BuildEnv, index: int) -> nn.Module:
        """Build the MLP of layer ``index``."""
        return GatedMLP(config, env)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        return self.model(batch)

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return self.lm_head(hidden)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``Model``; embedding checkpoints may omit ``model.`` and contain an unused head."""
        named = (
            (f"model.{name}" if name.startswith(("embed_tokens.", "layers.", "norm.")) else name, tensor)
            for name, tensor in weights
        )
        headless = "generate" not in self.env.tasks
        super().load_weights((name, tensor) for name, tensor in named if not (headless and name.startswith("lm_head.")))


class TransformerLM(Model):
    """A decoder called ``transformer`` with a language-model head: GPT-2 and models that use its names.

    Args:
        decoder: from a batch to hidden states.
        embedding: its embedding of tokens, which is the head as well if the checkpoint says so.
        bias: the head has one.
    """

    prefixes: ClassVar[Mapping[str, str]] = {"": "transformer."}

    def __init__(
        self, config: Any, env: BuildEnv, decoder: nn.Module, embedding: Embedding, *, bias: bool = False
    ) -> None:
        super().__init__(config, env)
        self.transformer = decoder
        tied = embedding if config.tie_word_embeddings else None
        self.lm_head = ParallelLMHead(config.hidden_size, config.vocab_size, env, tied=tied, bias=bias)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like ``Model``; checkpoints may omit the prefix ``transformer.``."""
        roots = ("transformer.", "lm_head.")
        super().load_weights(
            (name if name.startswith(roots) else f"transformer.{name}", weight) for name, weight in weights
        )

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        result: Tensor = self.transformer(batch)
        return result

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]``."""
        return self.lm_head(hidden)
