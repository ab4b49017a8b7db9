"""Activation functions by the names that checkpoints give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.model import BuildEnv

Activation = Callable[[Tensor], Tensor]

_TANH_GELU: Activation = partial(F.gelu, approximate="tanh")


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": F.gelu,
    "gelu_fast": _TANH_GELU,
    "gelu_new": _TANH_GELU,
    "gelu_python": F.gelu,
    "gelu_python_tanh": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "leaky_relu": F.leaky_relu,
    "mish": F.mish,
    "quick_gelu": _quick_gelu,
    "relu": F.relu,
    "relu2": _squared_relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Activation:
    """Return the elementwise function called ``name``. Raises ``ConfigError`` if there is none."""
    function = ACTIVATIONS.get(name)
    if function is None:
        raise ConfigError(f"activation {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}")
    return function


def gated_activation(name: str, env: BuildEnv) -> Activation:
    """Return the function ``activation(gate) * up`` of ``[T, 2 * width]``, whose first half is the gate, to ``[T,
    width]``.

    Uses the kernel set's own function if it has one. Raises ``ConfigError`` for an unknown ``name``.
    """
    function = activation(name)
    if function is F.silu:
        return env.kernels.silu_mul

    def gated(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return function(gate) * up

    return gated
