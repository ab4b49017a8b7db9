"""Scales of an FP8 KV pool: picked out of a checkpoint's tensors while these are loaded."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.batch import KVScale
from sglang_plug.model import Model, WeightError
from sglang_plug.policy import KVPart, KVScaleTensor

from .kv_dtype import kv_dtype_name
from .resolve import Resolved

logger = logging.getLogger(__name__)

SMALLEST = torch.finfo(torch.float32).tiny
"""Scales below have no reciprocal in float32."""


@dataclass(frozen=True, slots=True)
class Found:
    """A scale as the checkpoint has it."""

    name: str
    tensor: Tensor

    def number(self) -> float:
        """Raises ``WeightError`` if it is not one that can be divided by."""
        if self.tensor.numel() != 1:
            raise WeightError(
                f"checkpoint tensor {self.name!r} has the shape {tuple(self.tensor.shape)}: one scale for all keys or "
                "values of a layer is supported; use --kv-cache-dtype bfloat16"
            )
        value = float(self.tensor)
        if not SMALLEST <= value < math.inf:
            raise WeightError(
                f"checkpoint tensor {self.name!r} is {value:g}, which is no scale: it must be positive and finite; "
                "use --kv-cache-dtype bfloat16"
            )
        return value


class KVScaleReader:
    """Keeps the scales among a checkpoint's tensors back from the model's weights.

    Args:
        model: whose layers they belong to. A parameter of the model's own is never taken for a scale.
        meaning: what the tensor of a name says about the KV pool.
    """

    def __init__(self, model: Model, meaning: Callable[[str], KVScaleTensor | None] | None) -> None:
        self._model, self._meaning = model, meaning
        self._found: dict[int, dict[KVPart, Found]] = {}
        self._names: list[str] = []

    def weights(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """``tensors`` without the scales, as a stream: nothing is known of the scales before it has ended.

        What would be a scale, but of no layer that attends, goes to the model, which refuses it by name.
        """
        own = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        for name, tensor in tensors:
            scale = self._meaning(name) if self._meaning is not None and name not in own else None
            layer = self._model.attending_layer(scale.layer) if scale is not None else None
            if scale is None or layer is None:
                yield name, tensor
                continue
            for part in scale.parts:
                self._keep(layer, part, Found(name, tensor.detach().clone()))

    def scales(self, resolved: Resolved) -> dict[int, KVScale]:
        """By layer, what units of the pool of ``resolved`` count; none if it keeps keys and values in no FP8.

        Raises ``WeightError`` that names a tensor which is no scale, or a layer that has one of keys or values only.
        """
        if not resolved.causal or resolved.kv_dtype.itemsize > 1:
            self._tell_unused(resolved)
            return {}
        scales = {layer: self._scale(layer, resolved.shape.values_in_keys) for layer in sorted(self._found)}
        self._tell(scales, resolved)
        return scales

    def _tell_unused(self, resolved: Resolved) -> None:
        if not self._names:
            return
        dtype = kv_dtype_name(resolved.kv_dtype)
        why = f"keys and values are kept in {dtype} (--kv-cache-dtype)" if resolved.causal else "nothing is kept"
        logger.info("KV cache scales of the checkpoint (%s, …) are not used: %s", self._names[0], why)

    def _tell(self, scales: Mapping[int, KVScale], resolved: Resolved) -> None:
        if not scales:
            dtype = resolved.kv_dtype
            logger.log(
                logging.WARNING if dtype == torch.float8_e4m3fn else logging.INFO,
                "KV cache scales: the checkpoint has none, all are 1. Keys and values beyond %g are clamped (%s)",
                torch.finfo(dtype).max,
                kv_dtype_name(dtype),
            )
            return
        keys, values = ([getattr(one, part) for one in scales.values()] for part in ("k", "v"))
        logger.info(
            "KV cache scales: from the checkpoint (%s, …), %d of %d layers. Keys: %.3g to %.3g, values: %.3g to %.3g",
            self._names[0],
            len(scales),
            resolved.shape.layers,
            min(keys),
            max(keys),
            min(values),
            max(values),
        )

    def _keep(self, layer: int, part: KVPart, found: Found) -> None:
        known = self._found.setdefault(layer, {}).setdefault(part, found)
        if known is not found and not torch.equal(known.tensor.flatten(), found.tensor.flatten()):
            raise WeightError(f"checkpoint has two scales for the same keys or values: {known.name!r}, {found.name!r}")
        self._names.append(found.name)

    def _scale(self, layer: int, values_in_keys: bool) -> KVScale:
        found = self._found[layer]
        wanted: tuple[KVPart, ...] = ("k",) if values_in_keys else ("k", "v")
        for part in wanted:
            if part not in found:
                (other,) = found.values()
                raise WeightError(f"checkpoint has {other.name!r} but no {part}_scale beside it")
        k = found["k"].number()
        return KVScale(k, k if values_in_keys else found["v"].number())
