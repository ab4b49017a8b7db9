"""Transformers' model code with this engine's attention and KV pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutputWithPast

from sglang_plug import Attention, AttentionShape, BuildEnv, ForwardBatch, Model

from .reference import HANDLER, INTERFACE, SINKS, filled, model_class, skeleton
from .self_check import check
from .trace import Layer, check_rope, trace

PREFIX = "reference."


class Step:
    """Holder of the current batch, read by the attention modules."""

    batch: ForwardBatch | None = None


@dataclass(frozen=True, slots=True)
class Paged:
    """Replacement of one attention module.

    Keys and values are brought to the number of heads and the widths of ``shape``, which other layers may need.
    """

    attention: Attention
    shape: AttentionShape
    step: Step

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: Mapping[str, Any]) -> Tensor:
        """Compute attention of ``[1, heads, T, dim]``, returning ``[1, T, heads, value_dim]``."""
        assert self.step.batch is not None
        heads, width = self.shape.kv_heads, v.shape[-1]
        q = _fitted(q, q.shape[1], self.shape.dim)
        k, v = _fitted(k, heads, self.shape.dim), _fitted(v, heads, self.shape.value_dim or self.shape.dim)
        if (sinks := options.get(SINKS)) is not None:
            return self.attention.with_sinks(q, k, v, sinks, self.step.batch)[None, ..., :width]
        return self.attention(q, k, v, self.step.batch)[None, ..., :width]


def _fitted(x: Tensor, heads: int, width: int) -> Tensor:
    """Convert ``[1, n, T, m]`` to ``[T, heads, width]``: heads are repeated, and padded with zeros."""
    x = x[0].transpose(0, 1)
    if x.shape[1] != heads:
        x = x.repeat_interleave(heads // x.shape[1], dim=1)
    return F.pad(x, (0, width - x.shape[2])) if x.shape[2] != width else x.contiguous()


class BodyOutput(BaseModelOutputWithPast):
    """Output of a body; everything else that a head may read is absent."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class PrecomputedStates(nn.Module):
    """Replaces the body and returns hidden states that were computed before."""

    def forward(self, *tokens: Any, inputs_embeds: Tensor, **options: Any) -> BodyOutput:
        """Return ``[1, rows, hidden]`` unchanged."""
        return BodyOutput(last_hidden_state=inputs_embeds)


class TransformersModel(Model):
    """A causal model of transformers.

    All sequences of a step form one row of tokens: everything except attention works on each token separately, and
    attention is ours, which knows the sequence boundaries. ``prepare`` compares the result with transformers' own
    before serving.
    """

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self._trace = trace(config)
        check_rope(config, env.context_length or config.max_position_embeddings)
        self.dtype, self.device = torch.get_default_dtype(), torch.get_default_device()
        self.reference: Any = skeleton(model_class(config), config)
        self.body: Any = None
        self._step = Step()

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry observed in a pass without weights, independent of the configuration's names."""
        return trace(config).shape()

    def attention_layer_index(self, path: str) -> int | None:
        """Return the attention layer by transformers' module name."""
        layers = {layer.module: layer.index for layer in self._trace.layers}
        return layers.get(path.removeprefix(PREFIX))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights like transformers, old layouts included. Raises ``WeightError`` for missing or unused ones."""
        named = ((name.removeprefix(PREFIX), tensor) for name, tensor in weights)
        self.reference = filled(model_class(self.config), self.config, named, self.dtype, self.device)

    def prepare(self) -> None:
        """Install our attention, split body and head, and compare with transformers' own results.

        Raises ``ConfigError`` if the logits differ.
        """
        check(self.config, self.reference, self, self._attach, self.env.attention)

    def _attach(self) -> None:
        shape = self._trace.shape()
        for layer in self._trace.layers:
            paged = Paged(self._attention(layer), shape, self._step)
            setattr(self.reference.get_submodule(layer.module), HANDLER, paged)
        self.reference.config._attn_implementation = INTERFACE
        self.body = self.reference.get_submodule(self._trace.body)
        self.reference.set_submodule(self._trace.body, PrecomputedStates())

    def _attention(self, layer: Layer) -> Attention:
        return Attention(self.env, layer.index, scale=layer.scale, window=layer.window, softcap=layer.softcap)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token, ``[T, hidden]``."""
        self._step.batch = batch
        try:
            result = self.body(input_ids=batch.input_ids[None], position_ids=batch.positions[None], use_cache=False)
        finally:
            self._step.batch = None
        hidden: Tensor = result.last_hidden_state[0]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[rows, vocabulary]`` by the reference's own forward, including its transformations."""
        logits: Tensor = self.reference(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits
