"""What each rank builds for itself: backends, its part of the model, its part of the KV pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sglang_plug.attention import AttentionBackend
from sglang_plug.attribution import graphs_problem, make, make_with_settings
from sglang_plug.batch import KVPool
from sglang_plug.config import ConfigError
from sglang_plug.executor import ALONE, Collectives, Recorded
from sglang_plug.kernels import Kernels
from sglang_plug.model import Model
from sglang_plug.quantization import Quantization, QuantizationRequest, stored_quantization

from .load import load_model
from .resolve import Resolved


@dataclass(slots=True)
class Parts:
    """One rank's share of a model, and what computes it."""

    resolved: Resolved
    collectives: Collectives
    backend: AttentionBackend
    kernels: Kernels
    quantization: Quantization | None
    model: Model

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.resolved.device

    def load(self, resolved: Resolved) -> Model:
        """This rank's part of another checkpoint's weights."""
        return load_model(resolved, self.backend, self.kernels, self.quantization, self.collectives)

    def pool(self, slots: int) -> KVPool:
        """Room for keys and values, slot 0 included."""
        resolved = self.resolved
        kv = KVPool.of(resolved.shape, slots=slots, dtype=resolved.dtype, device=resolved.device)
        self.use_scales(kv)
        return kv

    def use_scales(self, kv: KVPool | None) -> None:
        """Let ``kv`` count what it holds as the model's checkpoint says."""
        if kv is not None:
            kv.use_scales(self.model.kv_scales)


def build_parts(resolved: Resolved, collectives: Collectives = ALONE, adapters: bool = False) -> Parts:
    """Everything of one rank, its weights loaded; ``adapters``: requests may have some.

    Raises ``ConfigError`` if it cannot be served.
    """
    if collectives.size > 1:
        collectives = Recorded(collectives)  # the model's calls may be part of graphs
    backend = _attention(resolved)
    kernels = _kernels(resolved)
    if adapters:  # they come between product and activation
        kernels = replace(kernels, pack_gated=None)
    quantization = _quantization(resolved, kernels)
    model = load_model(resolved, backend, kernels, quantization, collectives)
    return Parts(resolved, collectives, backend, kernels, quantization, model)


def _attention(resolved: Resolved) -> AttentionBackend:
    component = resolved.choices["attention"].component
    if (problem := graphs_problem(component, component.load(AttentionBackend))) is not None:
        raise ConfigError(problem)
    arguments = resolved.shape, resolved.device, component.settings()
    backend: AttentionBackend = make(component, *arguments, base=AttentionBackend)
    return backend


def _kernels(resolved: Resolved) -> Kernels:
    component = resolved.choices["kernels"].component
    found = component.load()
    return found if isinstance(found, Kernels) else make_with_settings(component, contract=Kernels)


def _quantization(resolved: Resolved, kernels: Kernels) -> Quantization | None:
    """The quantization that was chosen, built for this checkpoint."""
    if "quantization" not in resolved.choices:
        return None
    component = resolved.choices["quantization"].component
    stored = stored_quantization(resolved.checkpoint.config)
    request = QuantizationRequest(device=resolved.device, dtype=resolved.dtype, stored=stored, kernels=kernels)
    found: Quantization = make(component, request, component.settings(), contract=Quantization)
    return found
