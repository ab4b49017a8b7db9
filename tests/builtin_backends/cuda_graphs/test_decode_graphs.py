"""Replayed decode steps equal steps without graphs; which steps are captured is tested as well."""

from __future__ import annotations

import gc
import io
import logging
from array import array
from collections.abc import Callable
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch

from sglang_plug import (
    AttentionBackend,
    CannotCaptureError,
    ExecutionContext,
    ExecutionPhase,
    GraphRecorder,
    ModelSpec,
)
from sglang_plug.config import BackendOptions, EngineConfig
from sglang_plug.contracts.request import LogprobOptions, Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.cuda_graphs import build
from sglang_plug_backends.cuda_graphs.capturing import no_collection
from sglang_plug_backends.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug_backends.cuda_graphs.graph_inputs import GraphInputs, Held
from sglang_plug_backends.torch_native.attention import TorchAttention

from .graph_bench import CPU, SHAPE, VOCABULARY, WIDTH, Engine, Recorder, StaticAttention


def crowd(engine: Engine) -> list[list[int]]:
    """Run requests that start at different times, some with the same prefix; return their outputs."""
    generator = torch.Generator().manual_seed(5)
    for index, (length, count) in enumerate([(5, 9), (1, 3), (12, 20), (7, 1), (40, 6), (12, 15), (3, 22), (9, 9)]):
        tokens = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        engine.submit([1, 2, 3, *tokens] if index % 2 else tokens, count)
        engine.step()
    return engine.finish()


overlap = pytest.mark.parametrize("overlap", [False, True])


@overlap
@pytest.mark.parametrize("page_size", [1, 4])
def test_tokens_are_those_without_graphs(page_size: int, overlap: bool) -> None:
    plain = Engine(graphs=False, page_size=page_size)
    graphed = Engine(graphs=True, page_size=page_size, overlap=overlap)
    expected = crowd(plain)
    assert crowd(graphed) == expected
    assert len({tuple(tokens[-4:]) for tokens in expected}) > 4, "outputs that do not differ prove nothing"
    assert graphed.recorder.replays > 15


@overlap
def test_sequences_that_lose_their_slots_and_come_back(overlap: bool) -> None:
    outputs = []
    for graphs in (False, True):
        engine = Engine(graphs=graphs, capacity=40, overlap=graphs and overlap)
        for first in (3, 8, 13):
            engine.submit([first, 5, 2, first], 20)
        outputs.append(engine.finish())
    assert outputs[0] == outputs[1]
    assert any(sequence.service.retractions for sequence in engine.sequences)


def test_sizes() -> None:
    sizes = Recorder().sizes
    assert sizes(1) == [1]
    assert sizes(5) == [1, 2, 4, 5]
    assert sizes(33) == [1, 2, 4, 8, 12, 16, 24, 32, 33]
    assert sizes(256)[-3:] == [240, 248, 256]


def test_a_recorder_says_which_sizes() -> None:
    engine = Engine(graphs=False)
    recorder = Recorder()
    recorder.sizes = lambda max_size: [1, 3]  # type: ignore[method-assign]
    assert engine.runner.kv is not None
    graphs = DecodeGraphs(
        engine.runner.backend,
        engine.runner.kv,
        recorder,
        device=CPU,
        page_size=1,
        max_size=8,
        width=WIDTH,
        collectives=SINGLE_RANK,
    )
    graphs.capture(engine.model)
    assert sorted(graphs.captured) == [1, 3] and graphs.max_size == 3


def test_steps_that_are_not_captured_run_without() -> None:
    engine = Engine(graphs=True, max_size=2)
    for length in (4, 5, 6):
        engine.submit([7] * length, 3)
    engine.step()
    engine.step()
    assert engine.recorder.replays == 0  # a prefill, then three rows
    engine.scheduler.abort("0")
    engine.step()
    assert engine.recorder.replays == 1
    engine.submit([5, 6], 5)
    engine.step()
    assert engine.recorder.replays == 1  # a prompt among them
    engine.finish()
    assert engine.recorder.replays > 1


@overlap
def test_slots_that_the_cache_replaces_while_a_replay_uses_them(overlap: bool) -> None:
    outputs = []
    for graphs in (False, True):
        engine = Engine(graphs=graphs, overlap=graphs and overlap)
        for count in (9, 12, 15):
            engine.submit([4, 5, 6, 7], count)
        engine.step()
        assert [sequence.slot_version for sequence in engine.sequences] == [0, 1, 1]
        engine.submit([8] * 12, 5)  # gets the slots of the finished sequences
        outputs.append(engine.finish())
    assert outputs[0] == outputs[1]


@overlap
def test_sampling_sees_the_logits(overlap: bool) -> None:
    outputs = []
    for graphs in (False, True):
        engine = Engine(graphs=graphs, overlap=graphs and overlap)
        engine.submit([3, 4, 5], 6, logprobs=LogprobOptions(top=2))
        engine.submit([9], 6, params={"frequency_penalty": 1.5})
        engine.submit([9, 9], 6, params={"logit_bias": {11: 100.0}})
        outputs.append(engine.finish())
    assert outputs[0] == outputs[1]
    assert outputs[1][2][2:] == [11] * 6


def test_a_replay_ahead_of_a_row_that_is_not_finite() -> None:
    engine = Engine(graphs=True, overlap=True)
    engine.submit([3, 4, 5], 6)
    engine.step()
    with torch.no_grad():
        engine.model.output.weight.fill_(torch.nan)
    outputs = [output for _ in range(2) for output in engine.pipeline.step()]
    assert outputs[0].finish is None
    assert outputs[1].finish is not None and "not finite" in outputs[1].finish.message
    assert not engine.scheduler.busy


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("others", [1, 2])
def test_a_step_ahead_of_one_bad_row_serves_the_others(graphs: bool, others: int) -> None:
    finished = []
    for bad in (False, True):
        engine = Engine(graphs=graphs, overlap=True)
        with torch.no_grad():
            engine.model.embed.weight[20] = torch.nan
        for row in range(others):
            engine.submit([3 + row, 4, 5], 6)
        if bad:
            engine.submit([7, 20], 6)
        if bad and others == 2:
            engine.submit([8, 9], 1)  # is not in the launched step, so the rows of the other tokens are looked up
        outputs = [output for _ in range(2) for output in engine.pipeline.step()]
        failed = [output.finish.message for output in outputs if output.finish is not None and output.finish.message]
        assert len(failed) == bad and all("not finite" in error for error in failed)
        finished.append(engine.finish()[:others])
    assert finished[0] == finished[1] and len(finished[1][0]) == 9


def test_logits_that_are_not_finite_are_told() -> None:
    engine = Engine(graphs=True)
    engine.submit([3, 4, 5], 6)
    engine.step()
    with torch.no_grad():
        engine.model.output.weight.fill_(torch.nan)
    chunks = engine.scheduler.plan()
    (result,) = engine.runner.run(chunks)
    assert engine.recorder.replays == 1 and "not finite" in str(result.error)


def test_other_weights_are_captured_again() -> None:
    engine = Engine(graphs=True, max_size=2)
    before = engine.recorder.captures
    engine.runner.components.model = other = Engine(graphs=False).model
    engine.submit([3, 4, 5], 4)
    engine.finish()
    assert engine.recorder.captures == 2 * before and other is engine.runner.components.model


def test_capturing_again_leaves_slots_in_use_alone() -> None:
    engine = Engine(graphs=True)
    engine.submit([3, 4, 5], 9)
    for _ in range(3):
        engine.step()
    kv = engine.runner.kv
    assert kv is not None and engine.graphs is not None
    before = kv.k[0][1:].clone()
    engine.recorder.exact = True
    engine.graphs.capture(Engine(graphs=False).model.eval())
    assert len(engine.graphs.captured) == 4
    torch.testing.assert_close(kv.k[0][1:], before, rtol=0, atol=0)


class Snapshot(Recorder):
    """A recorder that repeats the values that Python computed during the capture, so that replays use old lengths."""

    exact = True

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            peeks, self.model.peeks = self.model.peeks, None
            work()
            self.model.peeks = peeks

        return replay


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize(("capacity", "limit"), [(8, 1), (200, 1), (200, 50)])
def test_what_python_computes_is_noticed(
    page_size: int, capacity: int, limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(graphs=False, page_size=page_size, capacity=capacity)
    recorder = Snapshot()
    recorder.model = engine.model
    assert engine.runner.kv is not None
    for peeks in (None, limit):
        engine.model.peeks = peeks
        graphs = DecodeGraphs(
            engine.runner.backend,
            engine.runner.kv,
            recorder,
            device=CPU,
            page_size=page_size,
            max_size=4,
            width=WIDTH,
            collectives=SINGLE_RANK,
        )
        with caplog.at_level(logging.INFO):
            graphs.capture(engine.model)
        assert sorted(graphs.captured) == ([] if peeks else [1, 2, 4])
    (record,) = [record for record in caplog.records if "run without" in record.message]
    assert record.levelno == logging.INFO and "Tiny computes something in Python" in record.message


def test_a_refusal_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(graphs=True)

    def refuse(work: Callable[[], None]) -> Callable[[], None]:
        raise CannotCaptureError("aten::nonzero has no fixed shape")

    engine.recorder.capture = refuse  # type: ignore[method-assign]
    assert engine.graphs is not None
    with caplog.at_level(logging.INFO):
        engine.graphs.capture(engine.model)
    assert "run without CUDA graphs: aten::nonzero has no fixed shape" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    engine.submit([3, 4, 5], 4)
    assert len(engine.finish()[0]) == 7


def test_who_watches_the_routers_is_called() -> None:
    engine = Engine(graphs=True)
    engine.model.router.watcher = lambda layer, experts: None
    engine.submit([3, 4, 5], 4)
    engine.finish()
    assert engine.recorder.replays == 0


def test_a_model_that_cannot_be_captured_is_served(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(graphs=False)
    recorder = Recorder()
    recorder.capture = lambda work: (_ for _ in ()).throw(RuntimeError("it waits for the device"))  # type: ignore[method-assign,assignment]
    assert engine.runner.kv is not None
    graphs = DecodeGraphs(
        engine.runner.backend,
        engine.runner.kv,
        recorder,
        device=CPU,
        page_size=1,
        max_size=4,
        width=WIDTH,
        collectives=SINGLE_RANK,
    )
    engine.use(graphs)
    with caplog.at_level(logging.INFO):
        graphs.capture(engine.model)
    assert "cannot be captured as CUDA graphs" in caplog.text and "it waits for the device" in caplog.text
    engine.submit([3, 4, 5], 4)
    assert len(engine.finish()[0]) == 7


def test_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Engine(graphs=True, max_size=8)
    assert "Capture cuda graph begin." in caplog.text and "avail mem=1.00 GB" in caplog.text
    assert "Capture cuda graph bs [1, 2, 4, 8]" in caplog.text
    assert "Capturing batches (bs=1 avail_mem=1.00 GB): 100%|####################| 4/4" in caplog.messages
    assert "Capture cuda graph end. Time elapsed:" in caplog.text


def test_a_terminal_shows_how_far_it_is() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with redirect_stderr(Terminal()) as stream:
        engine = Engine(graphs=True, max_size=8)
    lines = stream.getvalue().strip().split("\r")
    assert len(lines) == 4
    assert lines[0].startswith("Capturing batches (bs=8 avail_mem=1.00 GB):  25%|#####")
    assert lines[3].endswith("| 4/4") and "(bs=1 " in lines[3]
    assert engine.graphs is not None
    with redirect_stderr(stream):
        engine.graphs.capture_sizes(engine.model, [2])
    assert stream.getvalue().count("\r") == 4, "what is only tried is not shown"


def test_padding_writes_to_the_spare_slot_only() -> None:
    engine = Engine(graphs=True)
    for count in (9, 9, 9, 4):
        engine.submit([count, 5, 2], count)
    while len(engine.scheduler.running) != 3:
        engine.step()
    engine.step()
    assert engine.graphs is not None
    used = {sequence.slots[sequence.computed - 1] for sequence in engine.scheduler.running}
    batch = engine.graphs.captured[4].batch
    assert set(batch.slots.tolist()) == {0, *used}
    assert (batch.input_ids[3], batch.positions[3], batch.slots[3], batch.kv_lens[3]) == (0, 0, 0, 1)


def test_a_sequence_whose_slots_were_replaced_does_not_follow_on() -> None:
    params = SamplingParams(max_new_tokens=9)
    sequence = Sequence.of(Request(id="1", tokens=(1, 2, 3), params=params), WIDTH)
    sequence.computed = 2
    held = Held(ref(sequence), 0, 3)
    assert held.precedes(ScheduledChunk(sequence, 1, ahead=1))
    assert not held.precedes(ScheduledChunk(sequence, 1))
    sequence.slot_version = 1
    assert not held.precedes(ScheduledChunk(sequence, 1, ahead=1))


def test_inputs_keep_no_sequence_that_has_ended() -> None:
    inputs = GraphInputs(2, 8, torch.device("cpu"))
    sequence = Sequence.of(Request(id="1", tokens=(1, 2, 3), params=SamplingParams(max_new_tokens=9)), WIDTH)
    sequence.slots.extend((4, 5, 6))
    sequence.computed = 2
    chunk = ScheduledChunk(sequence, 1)
    assert inputs.describe([chunk], [1]) == [(1, array("q", (4, 5, 6)))]
    assert inputs.rows([chunk], 2) == [1]
    held = ref(sequence)
    del sequence, chunk
    assert held() is None


class OwnAttention(StaticAttention):
    """An attention backend with a recorder of its own."""

    def recorder(self) -> GraphRecorder:
        recorder = Recorder()
        recorder.name = "decode graph"
        return recorder


def extension_context(*, device: str = "cuda", task: str = "generate", ranks: int = 1, **more: Any) -> Any:
    """Return the context from which extensions are built; options of backends may be among ``more``."""
    facts = {"causal": True, "states": (), "chunk_size": 2048, "max_running": 300, **more}
    options = {name: facts.pop(name) for name in tuple(facts) if "cuda_graph" in name}
    spec = ModelSpec(name="x", target="x:X", causal=facts.pop("causal"))
    return SimpleNamespace(
        config=EngineConfig(backends=BackendOptions(**options)),
        device=torch.device(device),
        tasks=(task,),
        model=SimpleNamespace(spec_as=lambda kind: spec),
        ranks=SimpleNamespace(size=ranks),
        **facts,
    )


def test_where_the_engine_uses_graphs(caplog: pytest.LogCaptureFixture) -> None:
    """Graphs are used with a backend's own recorder and on CUDA; whole engines on CUDA are tested with the fake
    device."""
    engine = Engine(graphs=False)
    kv = engine.runner.kv
    assert kv is not None

    def build_graphs(backend: AttentionBackend, **facts: Any) -> DecodeGraphs | None:
        extension = build.build_decode_graphs(extension_context(**facts))
        if extension is None:
            return None
        assert isinstance(extension, ExecutionPhase)
        context = ExecutionContext(
            backend=backend, attention="attention 'x'", kv=kv, max_context=40, collectives=SINGLE_RANK
        )
        with caplog.at_level(logging.INFO):
            graphs = extension.executor(context)
        assert graphs is None or isinstance(graphs, DecodeGraphs)
        return graphs

    able, unable, own = StaticAttention(SHAPE, CPU), TorchAttention(SHAPE, CPU), OwnAttention(SHAPE, CPU)
    assert build_graphs(able, device="cpu") is None and build_graphs(own, device="cpu", task="embed") is None
    assert build_graphs(able, task="embed") is None and build_graphs(able, causal=False) is None
    assert caplog.text == ""
    assert build_graphs(able, disable_cuda_graph=True) is None and "--disable-cuda-graph" in caplog.text
    assert build_graphs(unable) is None and "attention 'x' does not offer them" in caplog.text
    largest, small = build_graphs(own, device="cpu"), build_graphs(own, device="cpu", cuda_graph_max_bs=16)
    assert largest is not None and largest.max_size == 256
    assert small is not None and small.max_size == 16
    small.capture(engine.model)
    assert small.captured[1].batch.tables.shape == (1, 40)
    assert build_graphs(own, device="cpu", disable_cuda_graph=True) is None
    assert "without decode graphs: --disable-cuda-graph" in caplog.text


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("frozen", [False, True])
def test_what_the_collector_was_told_before_a_capture_holds_after_it(frozen: bool) -> None:
    if frozen:
        gc.freeze()
    with no_collection():
        assert gc.get_freeze_count() > 0
    assert (gc.get_freeze_count() > 0) is frozen
