"""Tracing of a model without weights: the attention parameters of each of its layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sglang_plug import AttentionShape, ConfigError
from sglang_plug.system.torch_defaults import default_dtype

from .reference import ATTENDING, HANDLER, SINKS, model_class, refusal, rope_types, skeleton

TOKENS = 3
HARMLESS = frozenset({"dropout", "position_ids", "cache_position", "use_cache", "is_causal"})
"""Arguments of an attention call that do not affect its result, or only in ways that are already known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The attention parameters of one layer."""

    index: int
    module: str
    """Path of the attention module."""
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """The layers of a model and the path of its body."""

    layers: tuple[Layer, ...]
    body: str
    """Path of the module that computes hidden states; the rest is the head."""

    def shape(self) -> AttentionShape:
        """Return a geometry that fits every layer: narrow keys are padded, and few are repeated."""
        dim, value_dim = max(layer.dim for layer in self.layers), max(layer.value_dim for layer in self.layers)
        return AttentionShape(
            heads=self.layers[0].heads,
            kv_heads=math.lcm(*(layer.kv_heads for layer in self.layers)),
            dim=dim,
            value_dim=None if value_dim == dim else value_dim,
            layers=len(self.layers),
            sinks=any(layer.sinks for layer in self.layers),
        )


def trace(config: Any) -> Trace:
    """Run the model on the meta device and record its attention calls.

    Raises ``ConfigError`` for a model that would not be right on paged keys and values.
    """
    layers: list[Layer] = []
    try:
        model = _model(config)
        for name, module in model.named_modules():
            if hasattr(module, "layer_idx"):
                setattr(module, HANDLER, _recorder(config, name, module, layers))
        body = _body(model)
        paths = [name for name, module in model.named_modules() if module is body and name]
        if not paths:
            raise refusal(config, "its body and its head are one module")
        with torch.inference_mode():
            tokens, positions = (torch.zeros(1, TOKENS, dtype=torch.int64, device="meta") for _ in range(2))
            body(input_ids=tokens, position_ids=positions, use_cache=False)
    except ConfigError:
        raise
    except Exception as error:  # exceptions differ between transformers' classes
        line = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise refusal(config, f"its attention cannot be replaced ({line})") from error
    _check(config, layers)
    return Trace(tuple(layers), paths[0])


def _model(config: Any) -> PreTrainedModel:
    plain = copy.deepcopy(config)
    for parameters in rope_types(plain):
        if parameters.get("rope_type") == "dynamic":  # it reads positions, which have no values here
            parameters["rope_type"] = "default"
    with default_dtype(torch.bfloat16):  # some operators exist for this device only
        return skeleton(model_class(plain), plain)


def _body(model: PreTrainedModel) -> Any:
    """Return the part with attention; some classes call a matrix of their head a decoder."""
    for result in (model.get_decoder(), model.base_model):
        if any(hasattr(module, "layer_idx") for module in result.modules()):
            return result
    return model.get_decoder()


def _recorder(
    config: Any, name: str, module: Any, layers: list[Layer]
) -> Callable[[Tensor, Tensor, Tensor, Any, Mapping[str, Any]], Tensor]:
    def record(q: Tensor, k: Tensor, v: Tensor, mask: Any, options: Mapping[str, Any]) -> Tensor:
        unexpected = {key: value for key, value in options.items() if value is not None and value is not False}
        causal = unexpected.get("is_causal", getattr(module, "is_causal", True))
        unknown = unexpected.keys() - HARMLESS - {"scaling", "sliding_window", "softcap", SINKS}
        if mask is not None or unknown:
            raise refusal(config, f"its attention takes {min(unknown, default='a mask')}, which this engine's has not")
        if not causal or options.get("is_causal") is False:
            raise refusal(config, f"{name} looks at later tokens")
        layers.append(
            Layer(
                index=int(module.layer_idx),
                module=name,
                heads=q.shape[1],
                kv_heads=k.shape[1],
                dim=q.shape[3],
                value_dim=v.shape[3],
                scale=float(unexpected.get("scaling", q.shape[3] ** -0.5)),
                window=unexpected.get("sliding_window"),
                softcap=unexpected.get("softcap"),
                sinks=SINKS in unexpected,
            )
        )
        return q.new_empty(1, q.shape[2], q.shape[1], v.shape[3])

    return record


def _check(config: Any, layers: list[Layer]) -> None:
    """Check that every layer attends once, in order, in a common geometry, with the configuration's window."""
    if not layers:
        raise refusal(config, "its attention does not go through transformers' attention interface")
    expected = getattr(config, "num_hidden_layers", len(layers))
    if [layer.index for layer in layers] != list(range(expected)):
        raise refusal(config, f"{expected} layers make {len(layers)} attention calls; each has to make one")
    if len({layer.heads for layer in layers}) > 1 or layers[0].heads % math.lcm(*(layer.kv_heads for layer in layers)):
        raise refusal(config, "its layers differ in their numbers of heads")
    kinds = getattr(config, "layer_types", None)
    for layer, kind in zip(layers, kinds or (), strict=False):
        if kind not in ATTENDING or (kind == "sliding_attention") != bool(layer.window):
            raise refusal(config, f"layer {layer.index} is of type {kind!r} but asks for the window {layer.window}")
    window = getattr(config, "sliding_window", None)
    windows = {layer.window for layer in layers}
    if not windows <= {None, window}:  # its masks would be built from the configuration's
        raise refusal(config, f"its attention asks for windows other than the sliding_window {window}")
    if not kinds and window is not None and getattr(config, "use_sliding_window", True) and windows != {window}:
        raise refusal(config, f"its attention is not told of the sliding_window {window}")


def check_rope(config: Any, served: int) -> None:
    """Refuse rotations that depend on a step's longest sequence, because they would not match cached keys."""
    for parameters in rope_types(config):
        original = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        if parameters.get("rope_type") == "longrope" and served > original:
            raise refusal(
                config,
                f"longrope beyond {original} tokens changes keys that are cached; add --context-length {original}",
            )
