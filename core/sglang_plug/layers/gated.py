"""The first half of a gated MLP (Shazeer, 2020): gate and up projections, activation and product."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from sglang_plug.contracts.model.model import BuildEnv

from .activation import activation, gated_activation
from .linear import MergedColumnParallelLinear


class GateUpLinear(MergedColumnParallelLinear):
    """The function ``activation(gate(x)) * up(x)``, ``[T, in]`` to ``[T, width]``.

    A kernel set with ``pack_gated`` computes it in one operation if the activation is SiLU and nothing is quantized.

    Args:
        size_in: columns of both parts, ``gate`` and ``up``.
        width: rows of each part, over all ranks; each rank returns its columns.
        env: the environment that the model is built in.
        activation_name: its name in checkpoints, e.g. ``"silu"``. Raises ``ConfigError`` if it is unknown.
        bias: whether the parts have biases.
    """

    def __init__(self, size_in: int, width: int, env: BuildEnv, *, activation_name: str, bias: bool = False) -> None:
        super().__init__(size_in, {"gate": width, "up": width}, env, bias=bias)
        self._activate = gated_activation(activation_name, env)
        self._pack_gated = env.kernels.pack_gated if activation(activation_name) is F.silu else None
        self._is_fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[T, width]`` of ``[T, in]``."""
        product: Tensor = self._multiply(x)
        return product if self._is_fused else self._activate(product)

    def pack_weights(self) -> None:
        """Pack like ``Linear``, together with the activation if the kernel set supports it."""
        if self._pack_gated is not None and self._scheme is None and self.weight is not None:
            self._pack, self._is_fused = self._pack_gated, True
        super().pack_weights()
