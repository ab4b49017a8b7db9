"""Pooling of sentence-transformers checkpoints: from a text's hidden states to one vector."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import ConfigError, Pooling, PoolingMode, Projection
from sglang_plug_backends.checkpoint_files import MAX_CONFIG, read_file

NAMES: Mapping[str, PoolingMode] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
}
"""Names of the mode in newer files."""
MODES: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
}
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor] | None] = {
    "Identity": None,
    "Tanh": torch.tanh,
    "ReLU": F.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}
"""Classes of torch, by the last part of their names."""
WEIGHTS = "model.safetensors"
SENTENCE = "sentence_embedding"
"""Name of the one vector in sentence-transformers."""


def read_pooling(folder: Path) -> Pooling | None:
    """Read ``modules.json`` and the files it names; ``None`` if the folder has none.

    Raises ``ConfigError`` for modules that are not supported.
    """
    file = folder / "modules.json"
    if not file.is_file():
        return None
    modules = _read(file)
    mode: PoolingMode | None = None
    projections: list[Projection] = []
    normalize = False
    for module in modules if isinstance(modules, list) else ():
        directory = folder / str(module.get("path", ""))
        match str(module.get("type", "")).rpartition(".")[2]:
            case "Pooling":
                mode = _mode(directory / "config.json")
            case "Dense" if mode is not None and not normalize:
                projections.append(_projection(directory))
            case "Normalize":
                normalize = True
            case "Transformer":
                pass
            case other:
                raise ConfigError(f"{file} uses a module of type {other!r}, which is not supported at this position")
    return None if mode is None else Pooling(mode=mode, normalize=normalize, projections=tuple(projections))


def _projection(folder: Path) -> Projection:
    file = folder / "config.json"
    values = _read(file)
    taken = {values.get(key) or SENTENCE for key in ("module_input_name", "module_output_name")}
    if taken != {SENTENCE}:
        raise ConfigError(f"{file} projects {' and '.join(sorted(taken - {SENTENCE}))}; supported is {SENTENCE}")
    if values.get("use_residual"):
        raise ConfigError(f"{file} has use_residual, which is not supported")
    name = str(values.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ConfigError(f"{file} asks for the activation {name}; supported is one of {', '.join(ACTIVATIONS)}")
    try:
        held = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / WEIGHTS} cannot be read: {error}; only safetensors weights are read") from error
    weight, bias = held.get("linear.weight"), held.get("linear.bias")
    if weight is None or weight.shape != (values.get("out_features"), values.get("in_features")):
        shape = None if weight is None else tuple(weight.shape)
        raise ConfigError(f"{folder / WEIGHTS} holds a linear.weight of shape {shape}, which {file} does not describe")
    return Projection(weight=weight.float(), bias=None if bias is None else bias.float(), activation=ACTIVATIONS[name])


def _mode(file: Path) -> PoolingMode:
    values = _read(file)
    named = values.get("pooling_mode")
    if isinstance(named, str) and named in NAMES:
        return NAMES[named]
    chosen = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        names = ", ".join(chosen) or "no pooling"
        raise ConfigError(f"{file} asks for {names}; supported is one of {', '.join(MODES)}")
    return MODES[chosen[0]]


def _read(file: Path) -> Any:
    try:
        return json.loads(read_file(file, MAX_CONFIG).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
