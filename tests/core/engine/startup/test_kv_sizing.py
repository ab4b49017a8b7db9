"""The KV pool gets the device memory that weights, steps and graphs leave; here the device is a counter."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.executors import decode_graphs
from sglang_plug import ConfigError, EngineConfig, ForwardBatch, GraphCapable, GraphRecorder, KVPool, Plugins
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from sglang_plug.contracts.request import Finish, Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.engine.execution import rank_components
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import Control, FromEngine, Reply, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup import build
from sglang_plug.engine.startup.kv_sizing import COUNTED
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.torch_native.attention import TorchAttention

MIB = 1 << 20
TOTAL, BEFORE, WEIGHTS = 64 * MIB, 3 * MIB, 8 * MIB
TOKEN, FIRST_GRAPH, FURTHER_GRAPH = 16 << 10, 4 * MIB, MIB // 2
SLOT = 3 * 2 * 2 * 16 * 4
"""Bytes of a slot: layers, keys and values, heads, head size, bytes of a number."""


class Memory:
    """Simulated device memory; the peak of steps stays reserved, as in torch's allocator, until ``release``."""

    def __init__(self, total: int = TOTAL) -> None:
        self.size, self.held, self.kept, self.token = total, BEFORE, 0, TOKEN

    def total(self) -> int:
        return self.size

    def free(self) -> int:
        return self.size - self.held - self.kept

    def release(self) -> None:
        self.kept = 0

    def hold(self, owner: object, count: int) -> None:
        """Allocate ``count`` bytes until ``owner`` is garbage collected."""
        self.need(count)
        self.held += count
        self.kept = 0
        weakref.finalize(owner, self._return, count)

    def step(self, count: int) -> None:
        self.need(max(0, count - self.kept))
        self.kept = max(self.kept, count)

    def need(self, count: int) -> None:
        if count > self.size - self.held:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {count / MIB:.2f} MiB. GPU 0 has ...")

    def _return(self, count: int) -> None:
        self.held -= count


class Graph:
    def __call__(self) -> None:
        """Do nothing, because no test looks at the result of a replay."""


class Recorder(GraphRecorder):
    name = "CUDA graph"
    exact = False

    def __init__(self, memory: Memory, limit: Callable[[], int]) -> None:
        self.memory, self.limit, self.captures, self.begun = memory, limit, 0, 0

    def sizes(self, max_size: int) -> list[int]:
        return list(range(1, max_size + 1))

    def begin(self) -> None:
        self.begun += 1
        self.captures = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        graph = Graph()
        self.memory.hold(graph, FURTHER_GRAPH if self.captures else FIRST_GRAPH)
        self.captures += 1
        if self.captures > self.limit():
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
            finally:  # torch raises another error when a failed capture ends
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        return graph

    def free_bytes(self) -> int:
        return self.memory.free()


class Refusing(Recorder):
    """A recorder whose captures fail."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("it waits for the device")


class Attention(TorchAttention, GraphCapable):
    """An attention backend that allocates memory for the tokens of each step."""

    memory: Memory
    limit: Callable[[], int]
    recorders: type[Recorder]

    def plan(self, batch: ForwardBatch) -> None:
        super().plan(batch)
        self.memory.step(self.memory.token * len(batch.input_ids))

    def static_plan(self, batch: ForwardBatch) -> None:
        self.plan(batch)

    def refresh(self, batch: ForwardBatch) -> None:
        self.plan(batch)

    def recorder(self) -> GraphRecorder:
        return self.recorders(self.memory, self.limit)


class Start:
    """Starts engines on a device with simulated memory."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.memory = path, Memory()
        self.weights = WEIGHTS
        self.overrides = dict[str, Any]()
        """Changes to the configuration of the checkpoint."""
        self.inbox: list[ToEngine] = []
        self.sent: list[FromEngine] = []
        self.limit = 1000
        """Number of graph captures for which there is memory."""
        self.recorder = Recorder
        self.memory_of: Callable[[], Memory | None] = lambda: self.memory
        load, make = rank_components.load_model, KVPool.of.__func__  # type: ignore[attr-defined]

        def load_model(*arguments: Any) -> Any:
            model = load(*arguments)
            self.memory.hold(model, self.weights)
            return model

        def of(cls: type[KVPool], *arguments: Any, **named: Any) -> KVPool:
            pool: KVPool = make(cls, *arguments, **named)
            self.memory.hold(pool, sum(tensor.nbytes for tensor in (*pool.k, *pool.v)))
            return pool

        monkeypatch.setattr(rank_components, "load_model", load_model)
        monkeypatch.setattr(KVPool, "of", classmethod(of))
        monkeypatch.setattr(rank_components, "_attention", self.attention)

    def attention(self, resolved: Any) -> Attention:
        backend = Attention(resolved.shape, resolved.device)
        backend.memory, backend.limit, backend.recorders = self.memory, lambda: self.limit, self.recorder
        return backend

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        taken, self.inbox = self.inbox, []
        return taken

    def __call__(self, *, graphs: bool = True, chunk: int = 600, running: int = 8, **cache: Any) -> EngineLoop:
        config = EngineConfig(
            model=ModelOptions(path=str(self.path), device="cpu", dtype="float32", overrides=self.overrides),
            cache=CacheOptions(**cache),
            schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=running),
            backends=BackendOptions(
                attention="torch", kernels="cpu", disable_cuda_graph=not graphs, cuda_graph_max_bs=6, grammar="none"
            ),
        )
        plugins = Plugins.discover(config.plugins)
        return build.build_engine(
            config, plugins, self, self.sent.append, Heartbeat(), memory_of=lambda device: self.memory_of()
        )


@pytest.fixture
def start(tiny_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tiny_model("llama-3.2-1b").path, monkeypatch)


GRAPHS = FIRST_GRAPH + 5 * FURTHER_GRAPH


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("fraction", [None, 0.87])
def test_the_pool_gets_what_is_left(start: Start, fraction: float | None, page_size: int) -> None:
    start.memory.size = 32 * MIB
    engine = start(mem_fraction_static=fraction, page_size=page_size)
    memory = start.memory
    pool_bytes = int(32 * MIB * (fraction or 0.9)) - BEFORE - WEIGHTS - 600 * TOKEN - GRAPHS
    assert pool_bytes // SLOT - page_size < engine.scheduler.pool.capacity <= pool_bytes // SLOT
    assert engine.info["memory"] == {
        "before the start": BEFORE,
        "weights": WEIGHTS,
        "largest step": 600 * TOKEN,
        "graphs": GRAPHS,
        "KV pool": engine.scheduler.pool.rows * SLOT,
    }
    assert memory.held == BEFORE + WEIGHTS + GRAPHS + engine.scheduler.pool.rows * SLOT, "what was tried is gone"
    graphs = decode_graphs(engine.runner)
    assert graphs is not None and sorted(graphs.captured) == [1, 2, 3, 4, 5, 6]
    more = int(32 * MIB * (fraction or 0.9)) - memory.held - 600 * TOKEN
    assert -page_size * SLOT <= more < 2 * page_size * SLOT, "everything together fills the share"


def test_no_larger_than_useful(start: Start) -> None:
    engine = start()
    assert engine.scheduler.pool.capacity == 8 * (512 + 1)


def test_slots_that_take_no_memory_are_counted_all_the_same(start: Start, tiny_model: Callable[[str], Any]) -> None:
    start.path, start.memory_of = tiny_model("mamba-2-130m").path, lambda: None
    engine = start(graphs=False)
    assert engine.scheduler.pool.capacity == 8 * (512 + 1), "no more than could be used"
    engine = start(graphs=False, running=COUNTED // 512)
    assert engine.scheduler.pool.capacity == COUNTED, "nor more than are worth an entry in a list"
    start.overrides = {"max_position_embeddings": 2 * COUNTED}
    engine = start(graphs=False, running=2)
    assert engine.scheduler.pool.capacity == 2 * COUNTED + 1, "but the longest sequence finds room"


def test_without_graphs_theirs_is_the_pool_s(start: Start) -> None:
    start.memory.size = 24 * MIB
    engine = start(graphs=False)
    assert "graphs" not in engine.info["memory"]
    assert engine.scheduler.pool.capacity == (int(24 * MIB * 0.9) - BEFORE - WEIGHTS - 600 * TOKEN) // SLOT


def test_a_size_that_was_named_is_not_tried(start: Start) -> None:
    engine = start(max_total_tokens=64)
    assert engine.scheduler.pool.capacity == 64 and "largest step" not in engine.info["memory"]
    assert start.memory.kept == 0


def test_a_model_that_cannot_be_captured_takes_nothing_for_graphs(start: Start) -> None:
    start.memory.size, start.recorder = 24 * MIB, Refusing
    engine = start()
    graphs = decode_graphs(engine.runner)
    assert engine.info["memory"]["graphs"] == 0 and graphs is not None and graphs.captured == {}
    assert engine.scheduler.pool.capacity == (int(24 * MIB * 0.9) - BEFORE - WEIGHTS - 600 * TOKEN) // SLOT


def test_the_host_s_memory_is_not_tried(start: Start) -> None:
    start.memory_of = lambda: None
    engine = start(graphs=False)
    assert engine.info["memory"] == {} and engine.scheduler.pool.capacity == 8 * (512 + 1)


def fails(start: Start, size: int, **options: Any) -> str:
    start.memory.size = size
    with pytest.raises(ConfigError) as raised:
        start(**options)
    return str(raised.value)


def test_no_room_for_the_weights(start: Start) -> None:
    text = fails(start, BEFORE + WEIGHTS - 1)
    assert text.startswith("out of memory: no room for weights (tried to allocate 8.00 MiB); 0.01 GB of 0.01 GB are")
    assert "--quantization" in text


def test_no_room_for_the_largest_step(start: Start) -> None:
    text = fails(start, BEFORE + WEIGHTS + 500 * TOKEN)
    assert "no room for largest step" in text and "weights 0.01 GB" in text
    assert "lower --chunked-prefill-size (now 600) or --max-running-requests (now 8)" in text


def test_no_room_for_the_pool_of_a_trial(start: Start) -> None:
    assert "no room for a KV pool of 600 tokens for memory profiling" in fails(start, BEFORE + WEIGHTS + 300 * SLOT)


def test_no_room_for_graphs(start: Start) -> None:
    text = fails(start, BEFORE + WEIGHTS + FIRST_GRAPH + MIB // 4, chunk=100)
    assert "no room for graphs (tried to allocate 0.50 MiB)" in text and "largest step 0.00 GB" in text
    assert "--cuda-graph-max-bs (now 6)" in text and "--disable-cuda-graph" in text


def test_no_room_for_a_pool(start: Start) -> None:
    text = fails(start, BEFORE + WEIGHTS + 600 * TOKEN + GRAPHS + MIB)
    assert text.startswith("no memory for a KV pool: 0.00 GB are left of the 90% that --mem-fraction-static allows")
    assert "largest step 0.01 GB, graphs 0.01 GB" in text and "raise --mem-fraction-static" in text


def test_no_room_for_the_pool_that_was_named(start: Start) -> None:
    text = fails(start, BEFORE + WEIGHTS + 999 * SLOT, max_total_tokens=1000)
    assert "no room for KV pool (tried to allocate 0.73 MiB)" in text
    assert "1000 tokens take 0.00 GB; lower --mem-fraction-static or --max-total-tokens" in text


@pytest.mark.parametrize("on_host", [True, False])
def test_no_room_for_a_pool_beyond_all_memory(start: Start, on_host: bool) -> None:
    """Without the check, neither the host's allocator nor the list of slots would fail before the memory is used."""
    if on_host:
        start.memory_of = lambda: None
    text = fails(start, TOTAL, max_total_tokens=10**11, graphs=False)
    where = " GB are free" if on_host else " GB are all there is"
    assert "out of memory: no room for KV pool: 100000000000 tokens take " in text and where in text
    assert text.endswith("lower --max-total-tokens, or leave it out")


def test_no_room_for_the_captures(start: Start) -> None:
    """Torch raises the out-of-memory error as the context of another error."""
    start.limit = 3
    text = fails(start, TOTAL, max_total_tokens=1000)
    assert "no room for graphs (tried to allocate 2.00 MiB)" in text and "KV pool 0.00 GB" in text


def test_what_is_told(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        start()
    lines = [message for message in caplog.messages if message.startswith(("Memory", "KV Cache", "Capture cuda graph"))]
    assert [line.split(" 0.")[0].split(".")[0] for line in lines] == [
        "Memory: weights",
        "Memory: largest step",
        "Memory: graphs",
        "Memory: KV pool",
        "KV Cache is allocated",
        "Capture cuda graph begin",
        "Capture cuda graph bs [1, 2, 3, 4, 5, 6]",
        "Capture cuda graph end",
        "Memory: graphs",
    ]
    assert lines[0] == "Memory: weights 0.01 GB, avail mem=0.05 GB"


def request(id: str, count: int = 4) -> Submit:
    params = SamplingParams(max_new_tokens=count, temperature=0.0)
    return Submit(Request(id=id, tokens=(5, 6, 7), params=params))


def finish(start: Start, engine: EngineLoop) -> dict[str, Finish]:
    while start.inbox or engine.busy:
        engine.step()
    updates = [message for message in start.sent if isinstance(message, StepOutputs)]
    return {output.id: output.finish for message in updates for output in message.outputs if output.finish is not None}


def test_a_step_without_room_ends_its_requests_alone(start: Start) -> None:
    engine = start(max_total_tokens=1000)
    start.memory.token = 2 * TOTAL
    for number in range(5):
        start.inbox.append(request(f"large {number}"))
        finish(start, engine)
    start.memory.token = TOKEN
    start.inbox.append(request("small"))
    ends = finish(start, engine)
    assert ends["small"].reason == "length"
    for number in range(5):
        end = ends[f"large {number}"]
        assert end.reason == "error" and end.status == 500
        assert "out of memory: no room for a step (tried to allocate 384.00 MiB); 0.0" in end.message
        assert "of 0.06 GB are free; taken: before the start 0.00 GB, weights 0.01 GB" in end.message
        assert "--chunked-prefill-size" in end.message
    engine.scheduler.check()


def updated(start: Start, engine: EngineLoop) -> Reply:
    start.inbox.append(Control(1, "update_weights", {"source": str(start.path)}))
    engine.step()
    return next(message for message in reversed(start.sent) if isinstance(message, Reply))


def test_new_weights_are_captured_within_the_same_memory(start: Start) -> None:
    engine = start(max_total_tokens=1000)
    start.inbox.append(request("before"))
    finish(start, engine)
    held = start.memory.held
    for number in range(3):
        assert updated(start, engine).error is None
        start.inbox.append(request(f"after {number}"))
        assert finish(start, engine)[f"after {number}"].reason == "length"
        assert start.memory.held == held
    graphs = decode_graphs(engine.runner)
    assert graphs is not None and isinstance(graphs.recorder, Recorder)
    assert len(graphs.captured) == 6 and graphs.recorder.begun == 4


def test_new_weights_without_room_leave_the_old_ones(start: Start) -> None:
    engine = start(max_total_tokens=1000)
    start.weights = TOTAL
    reply = updated(start, engine)
    assert reply.status == 400
    assert "memory does not suffice for both" in str(reply.error) and "64.00 MiB" in str(reply.error)
    start.inbox.append(request("after"))
    assert finish(start, engine)["after"].reason == "length"


def test_new_weights_whose_graphs_find_no_room_are_served_without(start: Start) -> None:
    engine = start(max_total_tokens=1000)
    assert updated(start, engine).error is None
    start.limit = 2
    start.inbox.append(request("after"))
    assert finish(start, engine)["after"].reason == "length"
    graphs = decode_graphs(engine.runner)
    assert graphs is not None and graphs.captured == {}
