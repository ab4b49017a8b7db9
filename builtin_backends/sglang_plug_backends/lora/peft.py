"""Reader of PEFT's files: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sglang_plug import AdaptableLayer, Adapter, AdapterRequest, ConfigError, RankShard
from sglang_plug_backends.checkpoint_files import MAX_CONFIG, read_file

from .layer import LoraLayer, Pair

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MATRIX = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.\w+)?\.weight")
"""Tensor name ``base_model.model.<path>.lora_A.weight``; older files have the adapter's name before ``weight``."""
ROOTS = frozenset({"model", "language_model", "transformer"})
"""Names of the modules around a decoder's layers, which differ between classes of transformers."""
SHOWN = 3
Number = TypeVar("Number", int, float)
Target = tuple[AdaptableLayer, slice, RankShard | None, RankShard | None]
"""A layer, columns of its output, and this rank's slices of the matrix's input and output."""

REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA needs the base model's weights in every step; merge it into them",
    "alora_invocation_tokens": "adapters that begin with certain tokens are not supported",
    "layer_replication": "layers cannot be repeated",
    "lora_bias": "biases of lora_B are not supported",
    "use_qalora": "QALoRA is not supported",
    "modules_to_save": "whole modules cannot be replaced, only matrices of the layers be adapted",
    "trainable_token_indices": "embeddings cannot be adapted",
    "target_parameters": "parameters that are no matrix of a layer cannot be adapted",
}
"""Fields of the configuration that must be empty or false -> reason."""
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Prefixes of ``init_lora_weights`` values that change the base model's weights."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The fields of ``adapter_config.json`` that determine the arithmetic."""

    rank: int
    alpha: float
    stabilized: bool
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def pair(self, name: str) -> tuple[int, float]:
        """Return rank and scale of the matrix ``name``. A pattern matches the end of a name, after a dot."""
        rank, alpha = _matched(self.ranks, name, self.rank), _matched(self.alphas, name, self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.stabilized else rank)


def _matched(patterns: Mapping[str, Number], name: str, default: Number) -> Number:
    """Return the value of the first pattern that matches ``name``."""
    return next((value for item, value in patterns.items() if re.fullmatch(rf"(.*\.)?({item})", name)), default)


def read_lora(request: AdapterRequest, settings: None) -> Adapter | None:
    """Read the LoRA adapter in ``request.path`` onto the device; ``None`` if PEFT has saved no LoRA there.

    Raises ``ConfigError`` for one that is damaged, does not fit the model, or has unsupported parts.
    """
    stored = _stored(request.path / CONFIG)
    if stored is None or stored.get("peft_type") != "LORA":
        return None
    config = _checked(stored, request.path)
    results: dict[str, list[Pair]] = {}
    for name, (layer, columns, inputs, outputs), down, up in _matrices(request):
        rank, scale = config.pair(name)
        rows = columns.stop - columns.start if outputs is None else outputs.whole
        expected = (rank, layer.size_in if inputs is None else inputs.whole), (rows, rank)
        if (shapes := (tuple(down.shape), tuple(up.shape))) != expected:
            raise ConfigError(
                f"{request.path / WEIGHTS}: lora_A and lora_B of {name!r} are {list(shapes[0])} and {list(shapes[1])}, "
                f"but the model and {CONFIG} want {list(expected[0])} and {list(expected[1])}"
            )
        down, up = down if inputs is None else inputs.of(down, 1), up if outputs is None else outputs.of(up, 0)
        down, up = (item.to(device=request.device, dtype=request.dtype) for item in (down, up))
        results.setdefault(layer.name, []).append(Pair(columns, down, up, scale))
    layers = {name: LoraLayer(pairs) for name, pairs in results.items()}
    ranks = {len(pair.down) for pairs in results.values() for pair in pairs}
    return Adapter(layers=layers, facts={"format": "lora", "rank": max(ranks, default=0)})


def _stored(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        result = json.loads(read_file(path, MAX_CONFIG).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(result, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return result


def _checked(stored: Mapping[str, Any], folder: Path) -> LoraConfig:
    """Raise ``ConfigError`` for unsupported or malformed fields."""
    where = folder / CONFIG
    for name, why in REFUSED.items():
        if stored.get(name):
            raise ConfigError(f"{where}: {name} is set: {why}")
    if stored.get("bias", "none") != "none":
        raise ConfigError(f"{where}: bias is {stored['bias']!r}: biases cannot be replaced, train with bias 'none'")
    if isinstance(way := stored.get("init_lora_weights"), str) and way.startswith(CHANGES_BASE):
        raise ConfigError(
            f"{where}: init_lora_weights is {way!r}, which changes the base model; save the adapter converted to LoRA"
        )
    ranks, alphas = (stored.get(name) or {} for name in ("rank_pattern", "alpha_pattern"))
    rank, alpha = stored.get("r", 8), stored.get("lora_alpha", 8)
    if not (isinstance(ranks, dict) and isinstance(alphas, dict)):
        raise ConfigError(f"{where}: rank_pattern and alpha_pattern must be objects")
    if not all(_is_number(item, int) and item > 0 for item in (rank, *ranks.values())):
        raise ConfigError(f"{where}: r and the values of rank_pattern must be whole numbers above 0")
    if not all(_is_number(item, int | float) for item in (alpha, *alphas.values())):
        raise ConfigError(f"{where}: lora_alpha and the values of alpha_pattern must be numbers")
    for pattern in (*ranks, *alphas):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: {pattern!r} is not an expression: {error}") from error
    return LoraConfig(rank, alpha, bool(stored.get("use_rslora")), ranks, alphas)


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)


def _matrices(request: AdapterRequest) -> Iterator[tuple[str, Target, Tensor, Tensor]]:
    """Yield each adapted matrix: PEFT's name, its target in the model, ``lora_A`` and ``lora_B``."""
    tensors = _tensors(request.path)
    sides: dict[str, dict[str, Tensor]] = {}
    others = []
    for name, tensor in tensors.items():
        if (match := MATRIX.fullmatch(name)) is None:
            others.append(name)
        else:
            sides.setdefault(match[1], {})[match[2]] = tensor
    where = request.path / WEIGHTS
    if others:
        raise ConfigError(f"{where} holds tensors that are neither lora_A nor lora_B of a matrix: {_some(others)}")
    targets = {
        _short(name): (layer, columns, layer.inputs, layer.outputs.get(name))
        for name, (layer, columns) in request.target_modules().items()
    }
    if unknown := [name for name in sides if _short(name) not in targets]:
        raise ConfigError(
            f"{where} adapts modules that cannot be adapted in this model: {_some(unknown)}; "
            f"only matrices of its layers can, such as {_some(list(request.target_modules()))}"
        )
    for name, pair in sides.items():
        if missing := {"A", "B"} - set(pair):
            raise ConfigError(f"{where} has no lora_{min(missing)} of {name!r}")
        for side, tensor in pair.items():
            if not tensor.is_floating_point() or not tensor.isfinite().all():
                raise ConfigError(f"{where}: lora_{side} of {name!r} has numbers that are not finite, or no fractions")
        yield name, targets[_short(name)], pair["A"], pair["B"]


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        other = next((item.name for item in sorted(folder.glob("adapter_model.*"))), None)
        raise ConfigError(f"{path} is missing" + (f"; {other} is not read, only safetensors are" if other else ""))
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"cannot read {path}: {error}; is the file complete?") from error


def _short(name: str) -> str:
    """Return a matrix's name relative to the decoder's layers: ``layers.0.self_attn.q_proj``."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in ROOTS:
        parts = parts[1:]
    return ".".join(parts)


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {more} more" if more > 0 else "")
