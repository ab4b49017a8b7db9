"""Loading of quantized tensors by layers of many matrices, or by layers that need the weight itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.quantization import LinearScheme, StoredTensor


class Unpacking:
    """Collects the stored tensors of one or several matrices; a matrix is complete with its last tensor.

    Until ``finish`` the layer has parameters without memory instead of its ``weight``, which receive the stored
    tensors.

    Args:
        layer: the layer whose ``weight`` will be filled.
        schemes: name of a kind of matrix -> its scheme in the checkpoint; all ``stored`` have the same names.
    """

    def __init__(self, layer: nn.Module, schemes: Mapping[str, LinearScheme]) -> None:
        weight: Any = layer.weight
        self.weight: Tensor = weight.detach()
        """The layer's weight."""
        self.schemes = schemes
        self._layer = layer
        self._arrived: dict[str, dict[str, Tensor]] = {}
        first = next(iter(schemes.values()))
        if any(stored.parts for scheme in schemes.values() for stored in scheme.stored.values()):
            raise ConfigError("a layer whose weight is restored has one part; StoredTensor.of_parts is for several")
        self._parameters = {
            name: nn.Parameter(torch.empty(stored.shape, dtype=stored.dtype, device="meta"), requires_grad=False)
            for name, stored in first.stored.items()
        }
        del layer.weight
        for name, parameter in self._parameters.items():
            layer.register_parameter(name, parameter)

    def finish(self, *, keep: bool = True) -> None:
        """Restore the layer's weight, or set it to ``None``."""
        for name in self._parameters:
            delattr(self._layer, name)
        self._layer.register_parameter("weight", nn.Parameter(self.weight, requires_grad=False) if keep else None)

    def stored_as(self, parameter: Tensor) -> StoredTensor:
        """Return the stored tensor that ``parameter`` receives, in the first kind of matrix."""
        return next(iter(self.schemes.values())).stored[self._name(parameter)]

    def _name(self, parameter: Tensor) -> str:
        return next(name for name, candidate in self._parameters.items() if candidate is parameter)

    def add(self, kind: str, matrix: str, parameter: Tensor, tensor: Tensor) -> Mapping[str, Tensor] | None:
        """Add a tensor of a matrix that ``parameter`` received; return all tensors of the matrix, if this is its last.

        Raises ``ValueError`` if the tensor has another shape than the scheme says.
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
