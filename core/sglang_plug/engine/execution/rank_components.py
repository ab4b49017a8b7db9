"""The components that each rank builds for itself: backends, its part of the model, its part of the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.attention import Attention, AttentionBackend
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.contracts.model.kernels import Kernels
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.model.quantization import Quantization, QuantizationRequest, stored_quantization
from sglang_plug.contracts.serving.executor import SINGLE_RANK, CapturedCollectives, Collectives
from sglang_plug.engine.extensions.step_points import ForwardPoints
from sglang_plug.engine.loading.load import load_model
from sglang_plug.engine.loading.resolve import Resolved
from sglang_plug.engine.messages.rank_messages import all_ranks_succeeded
from sglang_plug.plugins.attribution import attributed, declaration_problem, make, make_with_settings
from sglang_plug.plugins.registry import PluginError


@dataclass(slots=True)
class RankComponents:
    """One rank's part of a model, and the components that compute it."""

    resolved: Resolved
    collectives: Collectives
    backend: AttentionBackend
    kernels: Kernels
    quantization: Quantization | None
    model: Model
    extensions: ForwardPoints

    @property
    def device(self) -> torch.device:
        """The device of the rank."""
        return self.resolved.device

    @property
    def page_size(self) -> int:
        """The number of slots of a page of the KV pool."""
        return self.resolved.config.cache.page_size

    def all_ranks_succeeded(self, done: bool) -> bool:
        """Return True if every rank succeeded, by a vote; ``done`` says whether this one did."""
        return all_ranks_succeeded(done, self.collectives, self.device)

    def load(self, resolved: Resolved) -> Model:
        """Load this rank's part of another checkpoint's weights."""
        return load_model(resolved, self.backend, self.kernels, self.quantization, self.collectives)

    def use(self, model: Model) -> None:
        """Compute with ``model`` from now on, whose weights are loaded; step extensions are installed in it."""
        self.model = model
        for install in self.extensions.install:
            install(model, self.kernels)

    def pool(self, slots: int) -> KVPool:
        """Allocate a KV pool with ``slots`` slots, slot 0 included."""
        resolved = self.resolved
        kv = KVPool.of(resolved.shape, slots=slots, dtype=resolved.dtype, device=resolved.device)
        self.use_scales(kv)
        return kv

    def use_scales(self, kv: KVPool | None) -> None:
        """Set the scales of ``kv`` to those of the model's checkpoint."""
        if kv is not None:
            kv.use_scales(self.model.kv_scales)


def build_rank_components(
    resolved: Resolved,
    extensions: ForwardPoints,
    collectives: Collectives = SINGLE_RANK,
) -> RankComponents:
    """Build the components of one rank and load its weights; ``extensions`` are not installed in the model yet.

    Raises ``ConfigError`` if the model cannot be served.
    """
    if collectives.size > 1:
        collectives = CapturedCollectives(collectives)  # the model's calls may be part of graphs
    backend = _attention(resolved)
    kernels = _kernels(resolved)
    for kernels_of in extensions.kernels:
        kernels = kernels_of(kernels)
    quantization = _quantization(resolved, kernels)

    def inspect_first(model: Model) -> None:
        check_attention(resolved, backend, model)
        for inspect in extensions.inspect:
            inspect(model)

    model = load_model(resolved, backend, kernels, quantization, collectives, inspect_first)
    return RankComponents(resolved, collectives, backend, kernels, quantization, model, extensions)


def _attention(resolved: Resolved) -> AttentionBackend:
    component = resolved.choices["attention"].component
    if (problem := declaration_problem(component, component.load(AttentionBackend))) is not None:
        raise ConfigError(problem)
    arguments = resolved.shape, resolved.device, component.settings()
    backend: AttentionBackend = make(component, *arguments, base=AttentionBackend)
    return backend


def check_attention(resolved: Resolved, backend: AttentionBackend, model: Model) -> None:
    """Run the backend for one token in one layer, and check its result.

    Results are not checked while serving: a wrong shape would show as an error of some later kernel. Raises
    ``PluginError`` if the result is not what ``AttentionBackend.run`` promises, or if the backend fails.
    """
    layer = next((module for module in model.modules() if isinstance(module, Attention)), None)
    if layer is None or not resolved.causal:
        return
    shape, dtype, device = resolved.shape, resolved.dtype, resolved.device
    page = resolved.config.cache.page_size
    numbers = partial(torch.zeros, dtype=torch.int64, device=device)
    batch = ForwardBatch(
        input_ids=numbers(1),
        positions=numbers(1),
        slots=numbers(1) + page,
        tables=numbers((1, 1), dtype=torch.int64) + page,
        query_lens=[1],
        kv_lens=[1],
        page_size=page,
        kv=KVPool.of(shape, slots=2 * page, dtype=dtype, device=device),
    )
    q = torch.zeros(1, shape.heads, shape.dim, dtype=dtype, device=device)
    k = torch.zeros(1, shape.kv_heads, shape.dim, dtype=dtype, device=device)
    width = shape.value_dim or shape.dim
    v = k[..., :width] if shape.values_in_keys else k.new_zeros(1, shape.kv_heads, width)
    component = resolved.choices["attention"].component
    with attributed(component, "to attend over one token"), torch.inference_mode():
        backend.plan(batch)
        output = backend.run(layer, q, k, v, batch)
        problem = _attention_problem(output, (1, shape.heads, width), dtype, device)
    if problem is not None:
        raise PluginError(f"{component}: run() must give {problem}")


def _attention_problem(output: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> str | None:
    """Describe how ``output`` differs from the expected tensor; ``None`` if it does not."""
    if not isinstance(output, torch.Tensor):
        return f"a tensor; it returned {type(output).__name__}"
    if tuple(output.shape) != shape:
        return f"a tensor of shape [tokens, heads, value_dim], here {list(shape)}; it returned {list(output.shape)}"
    if output.dtype != dtype:
        return f"a tensor of the dtype of its queries, {dtype}; it returned {output.dtype}"
    if output.device.type != device.type:
        return f"a tensor on {device}; it returned one on {output.device}"
    return None


def _kernels(resolved: Resolved) -> Kernels:
    component = resolved.choices["kernels"].component
    loaded = component.load()
    if isinstance(loaded, Kernels) and component.spec.settings is None:
        component.lifecycle.add(component, loaded)
        return loaded
    kernels: Kernels = make_with_settings(component, contract=Kernels)
    return kernels


def _quantization(resolved: Resolved, kernels: Kernels) -> Quantization | None:
    """Build the chosen quantization for this checkpoint; ``None`` if there is none."""
    if "quantization" not in resolved.choices:
        return None
    component = resolved.choices["quantization"].component
    stored = stored_quantization(resolved.checkpoint.config)
    request = QuantizationRequest(device=resolved.device, dtype=resolved.dtype, stored=stored, kernels=kernels)
    quantization: Quantization = make(component, request, component.settings(), contract=Quantization)
    return quantization
