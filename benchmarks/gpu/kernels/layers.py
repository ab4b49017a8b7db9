"""Decoding of one sequence through whole layers, with and without overlapping launches: correctness and speed.

A layer is nine kernels of the Triton plugin, or fewer where the library multiplies faster. Overlap saves time between
kernels, which no single kernel shows: steps of a whole model are captured and replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoConfig

from benchmarks.common.models import BYTES, SHAPES, Shape, write_model
from benchmarks.gpu.kernels.ceilings import copy_bandwidth, median_seconds
from sglang_plug import AttentionBackend, BuildEnv, ForwardBatch, Kernels, KVPool, Model, Plugins
from sglang_plug.testing.model.attention_inputs import ShuffledSlots, make_batch
from sglang_plug_backends.cuda_graphs.cuda_recorder import CudaRecorder

if TYPE_CHECKING:
    from sglang_plug_backends.triton.matrix_vector import Tiles  # only where Triton is

CONTEXT = 1024
"""Context length at which several programs share the work and their results are merged."""
CHECKED = replace(
    SHAPES["tiny"], name="small", layers=6, hidden=1024, intermediate=2816, dim=64, heads=16, kv_heads=4, vocabulary=512
)
"""Shapes of small kernels: the shorter they are, the more of them are in flight at once."""
REPLAYS, STEPS = 600, 30
"""Counts for each kind of products: graph replays, and steps launched kernel by kernel."""
Environment = Callable[[Shape, str, bool], tuple[AttentionBackend, Kernels]]
"""Builder of the attention backend and kernels of a model from shape, device and whether launches overlap."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode steps of one sequence; each writes its last token's keys and values to the same slot."""

    model: Model
    batch: ForwardBatch
    hidden: Tensor
    """Hidden states of the last step."""

    def step(self) -> None:
        """Compute one step, launched kernel by kernel."""
        self.hidden.copy_(self.model(self.batch))

    def captured(self) -> Callable[[], None]:
        """Return the step as a graph, if graphs are available."""
        if not self.hidden.is_cuda:
            return self.step
        for _ in range(2):  # compiles
            self.step()
        torch.cuda.synchronize()
        return CudaRecorder(self.hidden.device).capture(self.step)


@torch.inference_mode()
def layers(
    device: str, *shapes: str, seconds_of: Callable[[Callable[[], object], str], float] = median_seconds
) -> dict[str, Any]:
    """Return seconds per layer and the share of the bandwidth limit for each shape, without and with overlap.

    ``seconds_of`` times a step on a device.
    """
    bandwidth = copy_bandwidth(device)
    results: dict[str, Any] = {}
    for name in shapes:
        shape = SHAPES[name]
        min_seconds = shape.layers * shape.layer_weights * BYTES / bandwidth
        seconds: dict[str, float] = {}
        for overlap in (False, True):
            steps = build(shape, device, overlap)
            seconds["overlapping" if overlap else "apart"] = seconds_of(steps.captured(), device)
            del steps
        results[name] = {
            "layers": shape.layers,
            **{f"{way}_layer_seconds": duration / shape.layers for way, duration in seconds.items()},
            **{f"{way}_share_of_limit": min_seconds / duration for way, duration in seconds.items()},
            "speedup": seconds["apart"] / seconds["overlapping"],
        }
    return results


@torch.inference_mode()
def launches(
    device: str,
    *,
    shape: Shape = CHECKED,
    replays: int = REPLAYS,
    steps: int = STEPS,
    tiles: Ordered[Tiles] | None = None,
    environment: Environment | None = None,
) -> dict[str, Any]:
    """Check that steps with overlapping launches always compute the same bits as others; raises otherwise.

    ``tiles`` are all candidates of the Triton plugin unless given, and ``environment`` is that of a server.
    """
    rounds = {}
    for name, way in _ways_of_multiplying(device, environment or served, tiles).items():
        apart, overlapping = (build(shape, device, overlap, way) for overlap in (False, True))
        for kind, count in (("replays", replays), ("steps", steps)):
            runs = [item.captured() if kind == "replays" else item.step for item in (apart, overlapping)]
            tokens = torch.randint(shape.vocabulary, (count,), device=apart.hidden.device)
            if wrong := _differences(apart, overlapping, runs, tokens):
                raise AssertionError(f"{kind} with {name}: {wrong} of {count} differ where launches overlap")
        rounds[name] = replays + steps
    return rounds


def build(shape: Shape, device: str, overlap: bool, environment: Environment | None = None) -> Steps:
    """Build a model with fixed random weights, in the middle of decoding one sequence."""
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as name:
        config = AutoConfig.from_pretrained(write_model(shape, Path(name)))
    backend, kernels = (environment or served)(shape, device, overlap)
    model_class = Plugins.discover().get("model", shape.architecture).load(Model)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model: Model = model_class(config, BuildEnv(attention=backend, kernels=kernels, context_length=2 * CONTEXT))
    finally:
        torch.set_default_dtype(before)
    model.quantize()
    for parameter in model.parameters():
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5) if parameter.ndim > 1 else parameter.normal_(1.0, 0.1)
    model.requires_grad_(False).eval()
    model.prepare()
    slots, context = ShuffledSlots(CONTEXT, 1, 1, torch.Generator().manual_seed(3)), list[int]()
    slots.extend(context, CONTEXT)
    pool = KVPool.of(backend.shape, slots=slots.rows, dtype=torch.bfloat16, device=torch.device(device))
    for tensor in (*pool.k, *pool.v):
        tensor.normal_()
    batch = make_batch([context], [1], kv=pool, device=torch.device(device))
    backend.plan(batch)
    return Steps(model, batch, torch.zeros(1, shape.hidden, dtype=torch.bfloat16, device=device))


def served(shape: Shape, device: str, overlap: bool) -> tuple[AttentionBackend, Kernels]:
    """Return the kernels of a server on a GPU; on the host the definitions, for trying this out."""
    plugins = Plugins.discover()
    attention = plugins.get("attention", "triton" if device.startswith("cuda") else "torch").load(AttentionBackend)
    model_class = plugins.get("model", shape.architecture).load(Model)
    with tempfile.TemporaryDirectory() as name:
        needed = model_class.attention_shape(AutoConfig.from_pretrained(write_model(shape, Path(name))))
    if not device.startswith("cuda"):
        return attention(needed, torch.device(device)), Kernels()
    from sglang_plug_backends.triton.kernel_set import build as build_kernels  # only where Triton is
    from sglang_plug_backends.triton.settings import TritonSettings

    settings = TritonSettings(overlap_launches=overlap)
    return attention(needed, torch.device(device), settings), build_kernels(settings)


def _ways_of_multiplying(
    device: str, environment: Environment, tiles: Ordered[Tiles] | None
) -> Mapping[str, Environment]:
    if not device.startswith("cuda"):
        return {"the definition": environment}
    from sglang_plug_backends.triton.matrix_vector import TILES

    return {str(item): _with_products(environment, item) for item in (TILES if tiles is None else tiles)}


def _with_products(environment: Environment, chosen: Tiles) -> Environment:
    """Return ``environment`` with one kind of product, because the fastest may vary."""

    def with_products(shape: Shape, device: str, overlap: bool) -> tuple[AttentionBackend, Kernels]:
        from sglang_plug_backends.triton.matrix_vector import RowProducts

        def time(products: Ordered[Callable[[], Tensor]]) -> float:
            tiles = getattr(products[0], "keywords", {}).get("tiles")
            return 1.0 if tiles is None else 0.5 if tiles == chosen else 2.0

        backend, kernels = environment(shape, device, overlap)
        rows = RowProducts(kernels.silu_mul, time, overlap=overlap)
        return backend, replace(kernels, pack_linear=rows.pack_linear, pack_gated=rows.pack_gated)

    return with_products


def _differences(apart: Steps, overlapping: Steps, runs: Ordered[Callable[[], None]], tokens: Tensor) -> int:
    """Return the number of steps, each with the next of ``tokens``, after which results or pools differ."""
    different = torch.zeros((), dtype=torch.int64, device=tokens.device)
    slots = apart.batch.slots
    for step in range(len(tokens)):
        for item, run in zip((apart, overlapping), runs, strict=True):
            item.batch.input_ids.copy_(tokens[step : step + 1])
            run()
        both = [
            torch.cat([entry.hidden.flatten(), *(pool[slots].flatten() for pool in (*kv.k, *kv.v))])
            for entry in (apart, overlapping)
            if (kv := entry.batch.kv) is not None
        ]
        different += (both[0] != both[1]).any() | both[0].isnan().any()
    return int(different)
