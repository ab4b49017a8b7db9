"""Scales of an FP8 KV pool: separated from a checkpoint's tensors while these are loaded."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.contracts.model.batch import KVScale
from sglang_plug.contracts.model.checkpoint import KVPart, KVScaleTensor
from sglang_plug.contracts.model.model import Model, WeightError

from .kv_dtype import kv_dtype_name
from .resolve import Resolved

logger = logging.getLogger(__name__)

SMALLEST = torch.finfo(torch.float32).tiny
"""Smallest scale; lower ones have no reciprocal in float32."""


@dataclass(frozen=True, slots=True)
class StoredScale:
    """A scale as stored in the checkpoint."""

    name: str
    tensor: Tensor

    def number(self) -> float:
        """Return the scale as a number. Raises ``WeightError`` if it is not a positive, finite scalar."""
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
    """Separates the scales among a checkpoint's tensors from the model's weights.

    Args:
        model: the model with the layers of the scales. A parameter of the model is never taken for a scale.
        meaning: returns the meaning of a tensor's name for the KV pool, if it is a scale.
    """

    def __init__(self, model: Model, meaning: Callable[[str], KVScaleTensor | None] | None) -> None:
        self._model = model
        self._meaning = meaning
        self._scales: dict[int, dict[KVPart, StoredScale]] = {}
        self._names: list[str] = []

    def weights(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield ``tensors`` without the scales; the scales are complete only once the stream has ended.

        A scale of a layer that does not attend goes to the model, which refuses it by name.
        """
        own = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        for name, tensor in tensors:
            scale = self._meaning(name) if self._meaning is not None and name not in own else None
            layer = self._model.attention_layer_index(scale.layer) if scale is not None else None
            if scale is None or layer is None:
                yield name, tensor
                continue
            for part in scale.parts:
                self._keep(layer, part, StoredScale(name, tensor.detach().clone()))

    def scales(self, resolved: Resolved) -> dict[int, KVScale]:
        """Return the scales of the pool by layer; empty if the pool of ``resolved`` is not FP8.

        Raises ``WeightError`` naming a tensor that is not a valid scale, or that has no counterpart for keys or values.
        """
        if not resolved.causal or resolved.kv_dtype.itemsize > 1:
            self._log_unused(resolved)
            return {}
        scales = {layer: self._scale(layer, resolved.shape.values_in_keys) for layer in sorted(self._scales)}
        self._log(scales, resolved)
        return scales

    def _log_unused(self, resolved: Resolved) -> None:
        if not self._names:
            return
        dtype = kv_dtype_name(resolved.kv_dtype)
        why = f"keys and values are kept in {dtype} (--kv-cache-dtype)" if resolved.causal else "nothing is kept"
        logger.info("KV cache scales of the checkpoint (%s, …) are not used: %s", self._names[0], why)

    def _log(self, scales: Mapping[int, KVScale], resolved: Resolved) -> None:
        if not scales:
            dtype = resolved.kv_dtype
            logger.log(
                logging.WARNING if dtype == torch.float8_e4m3fn else logging.INFO,
                "KV cache scales: the checkpoint has none, all are 1. Keys and values beyond %g are clamped (%s)",
                torch.finfo(dtype).max,
                kv_dtype_name(dtype),
            )
            return
        keys, values = ([getattr(scale, part) for scale in scales.values()] for part in ("k", "v"))
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

    def _keep(self, layer: int, part: KVPart, stored: StoredScale) -> None:
        known = self._scales.setdefault(layer, {}).setdefault(part, stored)
        if known is not stored and not torch.equal(known.tensor.flatten(), stored.tensor.flatten()):
            raise WeightError(f"checkpoint has two scales for the same keys or values: {known.name!r}, {stored.name!r}")
        self._names.append(stored.name)

    def _scale(self, layer: int, values_in_keys: bool) -> KVScale:
        stored = self._scales[layer]
        parts: tuple[KVPart, ...] = ("k",) if values_in_keys else ("k", "v")
        for part in parts:
            if part not in stored:
                (other,) = stored.values()
                raise WeightError(f"checkpoint has {other.name!r} but no {part}_scale next to it")
        k = stored["k"].number()
        return KVScale(k, k if values_in_keys else stored["v"].number())
