"""An engine with simulated graphs: a replay runs the recorded function again on the same tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    BuildEnv,
    ForwardBatch,
    GraphCapable,
    GraphRecorder,
    Kernels,
    KVPool,
)
from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.execution.executors import StepExecutors
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.extensions.step_points import ForwardPoints, SamplingPoints
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.layers import Router
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.cuda_graphs.cuda_recorder import CudaRecorder
from sglang_plug_backends.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import FirstCome
from sglang_plug_backends.torch_native.attention import TorchAttention
from tests.core.engine.loop_parts import build_pipeline
from tests.core.engine.sampling.sampling_cases import processors

CPU = torch.device("cpu")


SHAPE = AttentionShape(heads=2, kv_heads=1, dim=8, layers=1)


VOCABULARY, WIDTH = 23, 64


class Recorder(GraphRecorder):
    """A recorder that runs the recorded function again, on the same tensors."""

    name = CudaRecorder.name
    exact = False

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def sizes(self, max_size: int) -> list[int]:
        return CudaRecorder.sizes(self, max_size)  # type: ignore[arg-type]

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        work()

        def replay() -> None:
            self.replays += 1
            work()

        return replay

    def free_bytes(self) -> int:
        return 1 << 30


class StaticAttention(TorchAttention, GraphCapable):
    """An attention backend that decodes from tensors alone, as in a graph; only ``refresh`` reads a batch's lists."""

    def static_plan(self, batch: ForwardBatch) -> None:
        batch.plan = torch.ones(len(batch.kv_lens), dtype=torch.int64)

    def refresh(self, batch: ForwardBatch) -> None:
        batch.plan.copy_(torch.tensor(batch.kv_lens))

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        if not isinstance(batch.plan, Tensor):
            return super().run(layer, q, k, v, batch)
        assert batch.kv is not None
        batch.kv.store(layer.index, k, v, batch.slots)
        keys, values = batch.kv.k[layer.index][batch.tables], batch.kv.v[layer.index][batch.tables]
        scores = torch.einsum("bhd,bmgd->bhm", q, keys) * layer.scale
        hidden = torch.arange(batch.tables.shape[1]) >= batch.plan[:, None]
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        return torch.einsum("bhm,bmgd->bhd", weights, values)


class ExactAttention(StaticAttention):
    """An attention backend that decodes in the same way with and without graphs."""

    def plan(self, batch: ForwardBatch) -> None:
        if max(batch.query_lens) > 1:
            return super().plan(batch)
        self.static_plan(batch)
        self.refresh(batch)


class Tiny(Model):
    """A model with one attention layer over embeddings of tokens and positions."""

    def __init__(self, env: BuildEnv) -> None:
        super().__init__(SimpleNamespace(), env)
        self.embed, self.position_embed = nn.Embedding(VOCABULARY, 32), nn.Embedding(WIDTH, 32)
        self.output = nn.Linear(16, VOCABULARY)
        self.attention = Attention(env, 0, scale=0.6)
        self.router = Router(16, 4, 2, env, layer=0)
        self.peeks: int | None = None
        """Context length above which hidden states are doubled; ``None``: the forward pass reads no lengths."""

    def forward(self, batch: ForwardBatch) -> Tensor:
        x = self.embed(batch.input_ids) + self.position_embed(batch.positions)
        q, k, v = x.view(-1, 4, 8).split((2, 1, 1), dim=1)
        factor = 2 if self.peeks is not None and batch.kv_lens[0] > self.peeks else 1
        return self.attention(q, k, v, batch).flatten(1) * factor

    def head(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


class Engine:
    """A scheduler and a runner, without an engine loop."""

    def __init__(
        self, *, graphs: bool, capacity: int = 200, max_size: int = 8, page_size: int = 1, overlap: bool = False
    ) -> None:
        torch.manual_seed(3)
        backend = ExactAttention(SHAPE, CPU)
        self.model = Tiny(BuildEnv(attention=backend)).eval()
        for parameter in self.model.parameters():
            nn.init.normal_(parameter)
        pool = SlotPool(capacity, page_size)
        kv = KVPool(layers=1, slots=pool.rows, kv_heads=1, dim=8, value_dim=8, dtype=torch.float32, device=CPU)
        clock = itertools.count()
        cache = RadixCache(page_size, LeastRecentlyUsed(), lambda: float(next(clock)))
        self.scheduler = build_scheduler(pool, cache, FirstCome(), chunk_size=32, max_running=8)
        self.recorder = Recorder()
        self.graphs = self.make_graphs(backend, kv, max_size, page_size) if graphs else None
        if self.graphs is not None:
            self.graphs.capture(self.model)
        parts: Any = SimpleNamespace(
            model=self.model,
            backend=backend,
            kernels=Kernels(),
            extensions=ForwardPoints(),
            device=CPU,
            page_size=page_size,
        )
        self.runner = Runner(parts, kv, SamplingPoints())
        self.use(self.graphs)
        self.pipeline = build_pipeline(self.scheduler, self.runner, overlap=overlap)
        self.sequences: list[Sequence] = []

    def use(self, graphs: DecodeGraphs | None) -> None:
        self.runner.executors = StepExecutors.of({} if graphs is None else {"decode-graphs": graphs})

    def make_graphs(self, backend: AttentionBackend, kv: KVPool, max_size: int, page_size: int) -> DecodeGraphs:
        return DecodeGraphs(
            backend,
            kv,
            self.recorder,
            device=CPU,
            page_size=page_size,
            max_size=max_size,
            width=WIDTH,
            collectives=SINGLE_RANK,
        )

    @functools.cached_property
    def processors(self) -> LogitsProcessors:
        return processors(VOCABULARY)

    def submit(self, tokens: list[int], count: int, **more: Any) -> None:
        params = SamplingParams(max_new_tokens=count, temperature=0.0, **more.pop("params", {}))
        request = Request(id=str(len(self.sequences)), tokens=tuple(tokens), params=params, **more)
        self.sequences.append(Sequence.of(request, WIDTH, processors=self.processors.admit(request)))
        self.scheduler.add(self.sequences[-1])

    def step(self) -> None:
        self.pipeline.step()
        self.scheduler.check()

    def finish(self) -> list[list[int]]:
        while self.scheduler.busy:
            self.step()
        return [sequence.tokens for sequence in self.sequences]
