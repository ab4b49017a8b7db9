"""Worker ranks replay the steps of rank 0 on the same inputs; either all ranks capture a graph, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from sglang_plug import CannotCaptureError, Collectives, ForwardBatch, RankEndpoint, RankGroup
from sglang_plug.contracts.serving.executor import CapturedCollectives
from sglang_plug.engine.execution.executors import StepExecutors
from sglang_plug.engine.extensions.build import RankLink, send_nothing
from sglang_plug.engine.messages.rank_messages import ExtensionCommand, Ranks, ToWorkerRank
from sglang_plug.engine.tensor_parallel.worker_rank import WorkerRank
from sglang_plug_backends.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug_backends.cuda_graphs.rank_commands import CaptureSizes, decode_command
from tests.builtin_backends.cuda_graphs.graph_bench import CPU, SHAPE, WIDTH, Engine, ExactAttention, Recorder
from tests.builtin_backends.cuda_graphs.test_decode_graphs import crowd

NAME = "decode-graphs"
NAMES = ("input_ids", "positions", "slots")
MultimodalInputs = dict[str, Any]


class Votes(Collectives):
    """Collectives of two ranks that take turns in one thread; the test sets the vote of the other rank."""

    def __init__(self, rank: int, sent: list[Tensor], other: float = 1.0) -> None:
        super().__init__(rank, 2)
        self.sent, self.other = sent, other

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + self.other

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat((x, x), 1)

    def broadcast(self, x: Tensor) -> None:
        if self.rank == 0:
            self.sent.append(x.clone())
        else:
            x.copy_(self.sent.pop(0))


class RecordingGroup(RankGroup):
    """Records the messages that are sent."""

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self.messages: list[Any] = []

    def send(self, message: bytes) -> None:
        self.messages.append(msgspec.msgpack.decode(message, type=ToWorkerRank))

    def failure(self) -> None:
        return None

    def close(self) -> None: ...


def link(group: RecordingGroup) -> RankLink:
    """Return the link from rank 0 to the ranks of ``group``."""
    return RankLink(NAME, group.collectives, CPU, Ranks(group).extension_command)


class FailingRecorder(Recorder):
    """A recorder that raises ``error`` instead of capturing, if it is set."""

    error: Exception | None = None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.error is not None:
            raise self.error
        return super().capture(work)


class WatchedAttention(ExactAttention):
    """An attention backend that records the inputs of each replay."""

    def __init__(self) -> None:
        super().__init__(SHAPE, CPU)
        self.inputs: list[MultimodalInputs] = []

    def refresh(self, batch: ForwardBatch) -> None:
        super().refresh(batch)
        slots = [table[:length].tolist() for table, length in zip(batch.tables, batch.kv_lens, strict=True)]
        inputs: MultimodalInputs = {name: getattr(batch, name).tolist() for name in NAMES}
        self.inputs.append({**inputs, "tables": slots, "lengths": list(batch.kv_lens)})


class Pair:
    """The engine of rank 0, and a worker rank with a model of its own."""

    def __init__(self, *, overlap: bool = False) -> None:
        sent: list[Tensor] = []
        self.group = RecordingGroup(Votes(0, sent))
        self.engine, twin = Engine(graphs=False, overlap=overlap), Engine(graphs=False)
        self.first, self.second = FailingRecorder(), FailingRecorder()
        self.first_attention, self.second_attention = WatchedAttention(), WatchedAttention()
        group = {"ranks": link(self.group), "collectives": self.group.collectives}
        self.graphs = self._made(self.engine, self.first, self.first_attention, **group)
        self.graphs.capture(self.engine.model)
        self.engine.use(self.graphs)
        components: Any = type("RankComponents", (), {"model": twin.model, "device": CPU})
        self.worker_rank = WorkerRank(components, RankEndpoint(Votes(1, sent), self._receive), kv=twin.runner.kv)
        collectives = self.worker_rank.endpoint.collectives
        ranks = RankLink(NAME, collectives, CPU, send_nothing)
        self.worker_graphs = self._made(twin, self.second, self.second_attention, ranks=ranks, collectives=collectives)
        self.worker_rank.executors = StepExecutors.of({NAME: self.worker_graphs})

    def _made(self, engine: Engine, recorder: Recorder, attention: WatchedAttention, **more: Any) -> DecodeGraphs:
        assert engine.runner.kv is not None
        return DecodeGraphs(
            attention, engine.runner.kv, recorder, device=CPU, page_size=1, max_size=8, width=WIDTH, **more
        )

    def _receive(self) -> bytes:
        """Return the next command to an extension; there are no messages to the model."""
        while self.group.messages:
            if isinstance(message := self.group.messages.pop(0), ExtensionCommand):
                return msgspec.msgpack.encode(message)
        raise EOFError

    def follow(self) -> None:
        """Let the worker rank process the messages sent since its last run."""
        self.worker_rank.run()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_worker_rank_replays_the_same_steps(overlap: bool) -> None:
    expected = crowd(Engine(graphs=False))
    pair = Pair(overlap=overlap)
    pair.follow()
    step = pair.engine.step

    def followed() -> None:
        step()
        pair.follow()

    pair.engine.step = followed  # type: ignore[method-assign]
    assert crowd(pair.engine) == expected
    assert pair.first.captures == pair.second.captures > 1
    assert len(pair.first_attention.inputs) > 15
    assert pair.first_attention.inputs == pair.second_attention.inputs


def test_new_weights_are_captured_by_all() -> None:
    pair = Pair()
    pair.follow()
    for engine in (pair.engine, Engine(graphs=False)):
        engine.submit([1, 2, 3], 4)
    pair.engine.runner.components.model = Engine(graphs=False).model
    pair.worker_rank.components.model = Engine(graphs=False).model
    pair.engine.finish()
    assert any(
        isinstance(decode_command(message.command), CaptureSizes)
        for message in pair.group.messages
        if isinstance(message, ExtensionCommand)
    )
    pair.follow()
    assert pair.first.captures == pair.second.captures == 2 * len(pair.first.sizes(8))
    assert pair.first_attention.inputs == pair.second_attention.inputs != []


def test_where_another_rank_cannot_capture_nobody_does(caplog: pytest.LogCaptureFixture) -> None:
    engine, group = Engine(graphs=False), RecordingGroup(Votes(0, [], other=0.0))
    assert engine.runner.kv is not None
    graphs = DecodeGraphs(
        engine.runner.backend,
        engine.runner.kv,
        Recorder(),
        device=CPU,
        page_size=1,
        max_size=8,
        width=WIDTH,
        ranks=link(group),
        collectives=group.collectives,
    )
    with caplog.at_level("INFO"):
        graphs.capture(engine.model)
    assert not graphs.captured
    assert "run without CUDA graphs: another rank could not capture its part" in caplog.text


def test_the_engine_does_not_go_on_while_others_wait_for_a_vote() -> None:
    pair = Pair()
    pair.first.error = torch.OutOfMemoryError("no room")
    with pytest.raises(torch.OutOfMemoryError):
        pair.graphs.capture(Engine(graphs=False).model)


@pytest.mark.parametrize("out_of_memory", [False, True])
def test_a_worker_rank_that_cannot_capture_votes_unless_its_memory_is_gone(out_of_memory: bool) -> None:
    pair, votes = Pair(), list[float]()

    class Broken(Votes):
        def all_reduce(self, x: Tensor) -> Tensor:
            votes.append(x.item())
            return x

    pair.second.error = torch.OutOfMemoryError("no room") if out_of_memory else CannotCaptureError("in Python")
    pair.worker_graphs.ranks = RankLink(NAME, Broken(1, []), CPU, send_nothing)
    if out_of_memory:
        with pytest.raises(torch.OutOfMemoryError):
            pair.follow()
        assert votes == [], "what is gone is noticed by the group"
    else:
        pair.follow()
        assert votes == [0.0]


def test_exchanges_are_part_of_a_replay() -> None:
    """Collectives are part of a graph, as the recorder implements them; a recorder without them raises an error."""
    calls = list[str]()

    class Own(Votes):
        def all_reduce(self, x: Tensor) -> Tensor:
            calls.append("sum")
            return x * 3

        def all_gather(self, x: Tensor) -> Tensor:
            calls.append("side by side")
            return super().all_gather(x)

    ranks = CapturedCollectives(Own(0, []))
    x, kept = torch.ones(1, 2), list[Callable[[], None]]()

    def keep(call: Callable[[], None]) -> None:
        kept.append(call)
        call()

    with ranks.handed_to(keep):
        summed = ranks.all_reduce(x)
        gathered = ranks.all_gather(summed)
        ranks.broadcast(x)
    assert gathered.tolist() == [[3, 3, 3, 3]] and len(kept) == 3
    x.fill_(2)
    for call in kept:
        call()
    assert gathered.tolist() == [[6, 6, 6, 6]] and calls == ["sum", "side by side"] * 2
    assert ranks.all_reduce(torch.ones(1)).item() == 3 and len(kept) == 3
    with (
        ranks.handed_to(Recorder().exchange),
        pytest.raises(CannotCaptureError, match="several ranks share the model, and a CUDA graph cannot wait"),
    ):
        ranks.all_reduce(x)
