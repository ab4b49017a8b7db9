"""Rotary position embeddings (Su et al., 2021) and their scalings to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug.config import ConfigError

Parameters = Mapping[str, Any]


class Rope(nn.Module):
    """Computes the cosines and sines of positions. One object serves all layers: call it once per step.

    Args:
        dim: width of a head.
        parameters: ``rope_parameters`` of the checkpoint: ``rope_type``, ``rope_theta`` and the type's own parameters.
        longest: the checkpoint's context length, which ``yarn`` and ``longrope`` refer to.
        served: the longest context that will be served, which decides between the two tables of ``longrope``; ``None``:
            ``longest``.
    """

    inverse: Tensor

    def __init__(self, dim: int, parameters: Parameters, longest: int, served: int | None = None) -> None:
        super().__init__()
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        build = SCALINGS.get(kind)
        if build is None:
            raise ConfigError(f"rope_type {kind!r} is not supported; known: {', '.join(sorted(SCALINGS))}")
        width = int(dim * parameters.get("partial_rotary_factor", 1.0))
        lengths = Lengths(stated=longest, served=longest if served is None else served)
        inverse, self.factor = build(width, parameters, lengths)
        device = torch.get_default_device()
        self.register_buffer("inverse", inverse.to(device=device, dtype=torch.float32), persistent=False)

    @classmethod
    def of(cls, config: Any, dim: int, served: int | None = None, *, whole: bool = False) -> Rope:
        """Build from a checkpoint's configuration, in its newer or older spelling; ``served`` as in the constructor.

        ``whole`` is for families that rotate all of a head whatever ``partial_rotary_factor`` says.
        """
        parameters = getattr(config, "rope_parameters", None)
        if parameters is None:
            parameters = {
                "rope_theta": getattr(config, "rope_theta", 10000.0),
                **(getattr(config, "rope_scaling", None) or {}),
            }
        if whole:
            parameters = {**parameters, "partial_rotary_factor": 1.0}
        return cls(dim, parameters, config.max_position_embeddings, served)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of ``positions`` ``[T]``: two ``[T, width]`` in ``dtype``, each angle twice."""
        angles = positions[:, None].float() * self.inverse
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        if self.factor != 1.0:
            cos, sin = cos * self.factor, sin * self.factor
        return cos.to(dtype), sin.to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Context lengths that a scaling may refer to, in tokens."""

    stated: int
    """The context length that the checkpoint states."""
    served: int


Scaled = tuple[Tensor, float]
"""Inverse frequencies ``[width / 2]``, and a factor on cosine and sine."""


def _default(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    theta = float(parameters.get("rope_theta", 10000.0))
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width
    return 1.0 / theta**exponents, 1.0


def _linear(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    """Divide positions by ``factor`` (Chen et al., 2023)."""
    inverse, _ = _default(width, parameters, lengths)
    return inverse / float(parameters["factor"]), 1.0


def _dynamic(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    """Return the plain frequencies: the base grows only beyond the context length that the checkpoint states."""
    return _default(width, parameters, lengths)


def _llama3(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    """Divide long wavelengths by ``factor``, keep short ones, and interpolate between (Llama 3.1)."""
    inverse, _ = _default(width, parameters, lengths)
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / inverse
    ramp = (original / wavelengths - low) / (high - low)
    ramped = (1 - ramp) * inverse / factor + ramp * inverse
    scaled = torch.where(wavelengths > original / low, inverse / factor, inverse)
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, ramped, scaled), 1.0


def _yarn(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    """Interpolate by frequency, and scale attention by a temperature (YaRN; Peng et al., 2023)."""
    inverse, _ = _default(width, parameters, lengths)
    theta = float(parameters.get("rope_theta", 10000.0))
    original = float(parameters.get("original_max_position_embeddings") or lengths.stated)
    factor = float(parameters.get("factor") or lengths.stated / original)

    def dimension(rotations: float) -> float:
        """Return the dimension that rotates ``rotations`` times over the original context."""
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(parameters.get("beta_fast") or 32.0))
    high = dimension(float(parameters.get("beta_slow") or 1.0))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, width - 1.0)
    steps = torch.arange(width // 2, dtype=torch.float32, device="cpu")
    interpolated = ((steps - low) / ((high - low) or 0.001)).clamp(0, 1)
    inverse = inverse / factor * interpolated + inverse * (1 - interpolated)
    return inverse, _yarn_temperature(factor, parameters)


def _yarn_temperature(factor: float, parameters: Parameters) -> float:
    def mscale_factor(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if (attention_factor := parameters.get("attention_factor")) is not None:
        return float(attention_factor)
    scale, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return mscale_factor(float(scale)) / mscale_factor(float(all_dims)) if scale and all_dims else mscale_factor(1.0)


def _longrope(width: int, parameters: Parameters, lengths: Lengths) -> Scaled:
    """Divide each frequency by its number in one of two lists (LongRoPE; Ding et al., 2024).

    The list for short contexts is used if no context beyond the original length is served, else the one for long
    contexts, for every sequence: keys in the pool are shared between prompts and outlive the step in which a sequence
    grows past the original length, so a server has to rotate all of them by the same angles.
    """
    original = float(parameters.get("original_max_position_embeddings") or lengths.stated)
    divisors = parameters["long_factor" if lengths.served > original else "short_factor"]
    if len(divisors) != width // 2:
        raise ConfigError(f"longrope needs {width // 2} factors for {width} rotated dimensions, got {len(divisors)}")
    inverse, _ = _default(width, parameters, lengths)
    temperature = parameters.get("attention_factor")
    if temperature is None:
        stretch = float(parameters.get("factor") or lengths.stated / original)
        temperature = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return inverse / torch.tensor(divisors, dtype=torch.float32, device="cpu"), float(temperature)


SCALINGS: Mapping[str, Callable[[int, Parameters, Lengths], Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
}
