"""The first half of a gated MLP (Shazeer, 2020): gate and up projection, activated and multiplied."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from sglang_plug.model import BuildEnv

from .activation import activation, gated_activation
from .linear import Packed


class Gated(Packed):
    """``activation(gate(x)) * up(x)``, ``[T, in]`` to ``[T, width]``.

    A kernel set that has ``pack_gated`` does it in one go where the activation is SiLU and nothing is quantized.

    Args:
        size_in: columns of both parts, ``gate`` and ``up``.
        width: rows of each, of all ranks; each rank gives its part.
        env: the surroundings the model is built in.
        activation_name: as checkpoints call it, e.g. ``"silu"``. Raises ``ConfigError`` if it is unknown.
        bias: whether the parts have biases.
    """

    def __init__(self, size_in: int, width: int, env: BuildEnv, *, activation_name: str, bias: bool = False) -> None:
        super().__init__(size_in, {"gate": width, "up": width}, env, bias=bias)
        self._activate = gated_activation(activation_name, env)
        self._at_once = env.kernels.pack_gated if activation(activation_name) is F.silu else None
        self._done = False

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` to ``[T, width]``."""
        found: Tensor = self._multiply(x)
        return found if self._done else self._activate(found)

    def pack_weights(self) -> None:
        """As ``Linear``; a kernel set that can is given the activation too."""
        if self._at_once is not None and self._scheme is None and self.weight is not None:
            self._pack, self._done = self._at_once, True
        super().pack_weights()
