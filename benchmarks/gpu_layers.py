"""Decoding one sequence through whole layers, with launches that overlap and without: are they right, are they faster?

A layer is nine kernels of the Triton plugin, or fewer where the library multiplies faster. What overlapping saves is
between them, so that no kernel by itself shows it: steps of a whole model are captured and replayed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from benchmarks.gpu_ceilings import ceilings, median_seconds
from benchmarks.models import BYTES, SHAPES, Shape, write_model
from sglang_plug import AttentionBackend, BuildEnv, ForwardBatch, Kernels, KVPool, Model, Plugins
from sglang_plug.engine.graphs import CudaRecorder
from sglang_plug.testing.scene import ShuffledSlots, make_batch

CONTEXT = 1024
"""Several programs share it, whose results are merged."""
CHECKED = replace(
    SHAPES["tiny"], name="small", layers=6, hidden=1024, intermediate=2816, dim=64, heads=16, kv_heads=4, vocabulary=512
)
"""Small kernels: the shorter they are, the more of them are under way at once."""
REPLAYS, STEPS = 600, 30
"""Of each kind of products: replays of the graph, and steps that are launched one kernel after the other."""
Surroundings = Callable[[Shape, str, bool], tuple[AttentionBackend, Kernels]]
"""Of a model for a shape on a device; true: launches overlap."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Decode steps of one sequence; each writes its last token's keys and values to the same slot."""

    model: Model
    batch: ForwardBatch
    hidden: Tensor
    """What the last step found."""

    def step(self) -> None:
        """Compute one, launched kernel by kernel."""
        self.hidden.copy_(self.model(self.batch))

    def captured(self) -> Callable[[], None]:
        """The same as a graph, where there are graphs."""
        if not self.hidden.is_cuda:
            return self.step
        for _ in range(2):  # compiles
            self.step()
        torch.cuda.synchronize()
        return CudaRecorder(self.hidden.device).capture(self.step)


@torch.inference_mode()
def layers(device: str, *shapes: str) -> dict[str, Any]:
    """Seconds of a layer, and the share of the bandwidth limit, for each shape; without overlap and with it."""
    bandwidth = ceilings(device)["copy_bandwidth"]
    found: dict[str, Any] = {}
    for name in shapes:
        shape = SHAPES[name]
        least = shape.layers * shape.layer_weights * BYTES / bandwidth
        seconds: dict[str, float] = {}
        for overlap in (False, True):
            steps = build(shape, device, overlap)
            seconds["overlapping" if overlap else "apart"] = median_seconds(steps.captured(), device)
            del steps
        found[name] = {
            "layers": shape.layers,
            **{f"{way}_layer_seconds": one / shape.layers for way, one in seconds.items()},
            **{f"{way}_share_of_limit": least / one for way, one in seconds.items()},
            "speedup": seconds["apart"] / seconds["overlapping"],
        }
    return found


@torch.inference_mode()
def launches(device: str) -> dict[str, Any]:
    """Steps whose launches overlap find the same bits as others, however often; raises if one does not."""
    rounds = {}
    for place, name in enumerate(_ways_of_multiplying(device)):
        apart, overlapping = (build(CHECKED, device, overlap, _with_products(place)) for overlap in (False, True))
        for kind, count in (("replays", REPLAYS), ("steps", STEPS)):
            runs = [one.captured() if kind == "replays" else one.step for one in (apart, overlapping)]
            if wrong := _differences(apart, overlapping, runs, count):
                raise AssertionError(f"{kind} with {name}: {wrong} of {count} differ where launches overlap")
        rounds[name] = REPLAYS + STEPS
    return rounds


def build(shape: Shape, device: str, overlap: bool, surroundings: Surroundings | None = None) -> Steps:
    """A model with the same random weights each time, in the middle of decoding one sequence."""
    torch.manual_seed(5)
    with tempfile.TemporaryDirectory() as name:
        config = AutoConfig.from_pretrained(write_model(shape, Path(name)))
    backend, kernels = (surroundings or served)(shape, device, overlap)
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
    for one in (*pool.k, *pool.v):
        one.normal_()
    batch = make_batch([context], [1], kv=pool, device=torch.device(device))
    backend.plan(batch)
    return Steps(model, batch, torch.zeros(1, shape.hidden, dtype=torch.bfloat16, device=device))


def served(shape: Shape, device: str, overlap: bool) -> tuple[AttentionBackend, Kernels]:
    """What a server has on a GPU; on the host the definitions, so that this can be tried there."""
    plugins = Plugins.discover()
    attention = plugins.get("attention", "triton" if device.startswith("cuda") else "torch").load(AttentionBackend)
    model_class = plugins.get("model", shape.architecture).load(Model)
    with tempfile.TemporaryDirectory() as name:
        needed = model_class.attention_shape(AutoConfig.from_pretrained(write_model(shape, Path(name))))
    if not device.startswith("cuda"):
        return attention(needed, torch.device(device)), Kernels()
    from sglang_plug_backends.triton.kernels import build as build_kernels  # only where Triton is
    from sglang_plug_backends.triton.settings import TritonSettings

    settings = TritonSettings(overlap_launches=overlap)
    return attention(needed, torch.device(device), settings), build_kernels(settings)


def _ways_of_multiplying(device: str) -> list[str]:
    if not device.startswith("cuda"):
        return ["the definition"]
    from sglang_plug_backends.triton.row import TILES

    return [str(tiles) for tiles in TILES]


def _with_products(place: int) -> Surroundings:
    """As ``served``, where all products are of one kind: which is the fastest may be another one each time."""

    def surroundings(shape: Shape, device: str, overlap: bool) -> tuple[AttentionBackend, Kernels]:
        backend, kernels = served(shape, device, overlap)
        if not device.startswith("cuda"):
            return backend, kernels
        from sglang_plug_backends.triton.row import TILES, RowProducts

        def time(products: Ordered[Callable[[], Tensor]]) -> float:
            tiles = getattr(products[0], "keywords", {}).get("tiles")
            return 1.0 if tiles is None else 0.5 if tiles == TILES[place] else 2.0

        rows = RowProducts(kernels.silu_mul, time, overlap=overlap)
        return backend, replace(kernels, pack_linear=rows.pack_linear, pack_gated=rows.pack_gated)

    return surroundings


def _differences(apart: Steps, overlapping: Steps, runs: Ordered[Callable[[], None]], count: int) -> int:
    """Of ``count`` steps with other tokens each, those after which what was found, or the pools, are not equal."""
    device = apart.hidden.device
    tokens = torch.randint(CHECKED.vocabulary, (count,), device=device)
    different = torch.zeros((), dtype=torch.int64, device=device)
    slots = apart.batch.slots
    for step in range(count):
        for one, run in zip((apart, overlapping), runs, strict=True):
            one.batch.input_ids.copy_(tokens[step : step + 1])
            run()
        both = [
            torch.cat([one.hidden.flatten(), *(pool[slots].flatten() for pool in (*kv.k, *kv.v))])
            for one in (apart, overlapping)
            if (kv := one.batch.kv) is not None
        ]
        different += (both[0] != both[1]).any() | both[0].isnan().any()
    return int(different)
