"""Tensors of quantized checkpoints for layers of many matrices, or that need a weight itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug.quantization import LinearScheme, StoredTensor


class Unpacking:
    """The tensors of one or several matrices on their way; each matrix is there once its last tensor is.

    Until ``finish`` a layer has parameters without memory that stand for what is loaded, instead of its ``weight``.

    Args:
        layer: whose ``weight`` they are to be filled into.
        schemes: by the name of a kind of matrix, how the checkpoint stores it; all ``stored`` have the same names.
    """

    def __init__(self, layer: nn.Module, schemes: Mapping[str, LinearScheme]) -> None:
        weight: Any = layer.weight
        self.weight: Tensor = weight.detach()
        """The layer's."""
        self.schemes = schemes
        self._layer = layer
        self._arrived: dict[str, dict[str, Tensor]] = {}
        first = next(iter(schemes.values()))
        self._parameters = {
            name: nn.Parameter(torch.empty(one.shape, dtype=one.dtype, device="meta"), requires_grad=False)
            for name, one in first.stored.items()
        }
        del layer.weight
        for name, parameter in self._parameters.items():
            layer.register_parameter(name, parameter)

    def finish(self, *, keep: bool = True) -> None:
        """Give the layer its weight back, or ``None`` in place of it."""
        for name in self._parameters:
            delattr(self._layer, name)
        self._layer.register_parameter("weight", nn.Parameter(self.weight, requires_grad=False) if keep else None)

    def stored_as(self, parameter: Tensor) -> StoredTensor:
        """How the checkpoint stores what ``parameter`` stands for, in the first kind of matrix."""
        return next(iter(self.schemes.values())).stored[self._name(parameter)]

    def _name(self, parameter: Tensor) -> str:
        return next(name for name, one in self._parameters.items() if one is parameter)

    def add(self, kind: str, matrix: str, parameter: Tensor, tensor: Tensor) -> Mapping[str, Tensor] | None:
        """A tensor of a matrix, for which ``parameter`` stands; all tensors of the matrix, if this is its last.

        Raises ``ValueError`` if the tensor has another shape than the matrix's kind has.
        """
        name = self._name(parameter)
        scheme = self.schemes[kind]
        stored = scheme.stored[name]
        if stored.one_per_part and tensor.numel() == 1:
            tensor = tensor.reshape(()).expand(stored.shape)
        elif stored.axis is None:
            tensor = tensor[None]
        if tuple(tensor.shape) != stored.shape:
            raise ValueError(f"expected shape {stored.shape}, found {tuple(tensor.shape)}")
        arrived = self._arrived.setdefault(matrix, {})
        arrived[name] = tensor.to(self.weight.device, stored.dtype)
        return None if len(arrived) < len(scheme.stored) else self._arrived.pop(matrix)
