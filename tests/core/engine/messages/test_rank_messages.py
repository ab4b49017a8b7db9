"""Worker ranks compute the batches that rank 0 describes in its messages."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug import ForwardBatch, Kernels, RankEndpoint, RankGroup, RankStep, Request, SamplingParams
from sglang_plug.contracts.serving.executor import Collectives
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.extensions.step_points import ForwardPoints, SamplingPoints
from sglang_plug.engine.messages.rank_messages import Ranks, ToWorkerRank
from sglang_plug.engine.sequences.launched_step import DeviceTokens
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.engine.tensor_parallel.worker_rank import WorkerRank

CPU = torch.device("cpu")


class Line(Collectives):
    """Collectives of two ranks in one thread; broadcast tensors are stored until the other rank receives them."""

    def __init__(self, rank: int, sent: list[Tensor]) -> None:
        super().__init__(rank, 2)
        self.sent = sent

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor) -> None:
        if self.rank == 0:
            self.sent.append(x.clone())
        else:
            tensor = self.sent.pop(0)
            assert (tensor.shape, tensor.dtype) == (x.shape, x.dtype)
            x.copy_(tensor)


class RecordingGroup(RankGroup):
    """Records the messages that are sent."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []
        self.collectives = Line(0, self.sent)
        self.messages: list[Any] = []
        self.arriving: list[bytes] = []
        """Messages that the worker rank has not received yet."""

    def send(self, message: bytes) -> None:
        self.arriving.append(message)
        self.messages.append(msgspec.msgpack.decode(message, type=ToWorkerRank))

    def receive(self) -> bytes:
        if not self.arriving:
            raise EOFError
        return self.arriving.pop(0)

    def failure(self) -> None:
        return None

    def close(self) -> None:
        self.messages.append("closed")


class Backend:
    """An attention backend that keeps the batches it plans."""

    def __init__(self) -> None:
        self.planned: list[ForwardBatch] = []

    def plan(self, batch: ForwardBatch) -> None:
        self.planned.append(batch)


class RankComponents:
    """A stand-in for the components that a runner and a worker rank read."""

    device, page_size = CPU, 1
    kernels, extensions = Kernels(), ForwardPoints()

    def __init__(self) -> None:
        self.backend = Backend()
        self.model: Any = lambda batch: None


class Bench:
    """The runner of rank 0, and a worker rank that receives its messages."""

    def __init__(self) -> None:
        self.group = RecordingGroup()
        self.ranks = Ranks(self.group)
        own: Any = RankComponents()
        self.runner = Runner(own, None, SamplingPoints())
        self.components: Any = RankComponents()
        self.worker_rank = WorkerRank(self.components, RankEndpoint(Line(1, self.group.sent), self.group.receive))

    def step(
        self,
        chunks: list[ScheduledChunk],
        device_tokens: DeviceTokens | None = None,
        extensions: Mapping[str, RankStep] = MappingProxyType({}),
    ) -> tuple[Any, Any]:
        """Return the batch that rank 0 builds, and the one that the worker rank builds."""
        batch = self.runner.build(chunks, device_tokens)
        self.ranks.step(chunks, batch, known=device_tokens is None, extensions=extensions)
        self.worker_rank.run()
        return batch, self.components.backend.planned[-1]


def same(batch: ForwardBatch, other: ForwardBatch) -> None:
    for name in ("input_ids", "positions", "slots", "tables"):
        mine, theirs = getattr(batch, name), getattr(other, name)
        assert torch.equal(mine, theirs), name
        assert mine.dtype == theirs.dtype
    assert (batch.query_lens, batch.kv_lens) == (other.query_lens, other.kv_lens)


def sequence(number: int, length: int) -> Sequence:
    tokens = tuple(1000 * number + index for index in range(length))
    return Sequence.of(Request(id=str(number), tokens=tokens, params=SamplingParams(max_new_tokens=100)), 500)


@given(st.data())
def test_a_worker_rank_builds_the_same_batches(data: st.DataObject) -> None:
    """The batches are equal when sequences join, skip a step, are aborted, have rejected drafts or are retracted."""
    bench, fresh = Bench(), iter(range(1, 10**6))
    sequences = [sequence(number, data.draw(st.integers(1, 12))) for number in range(4)]
    for _ in range(data.draw(st.integers(1, 12))):
        chunks = []
        for seq in data.draw(st.permutations(sequences)):
            action = data.draw(st.sampled_from(["computes", "computes", "computes", "rests", "is retracted"]))
            if action == "is retracted":
                seq.slots, seq.computed, seq.slot_version = array("q"), 0, seq.slot_version + 1
            if action != "computes":
                continue
            remaining = len(seq.tokens) - seq.computed
            count = data.draw(st.integers(1, remaining))
            drafts = tuple(range(data.draw(st.integers(0, 3)))) if count == remaining else ()
            chunk = ScheduledChunk(seq, count, drafts=drafts)
            del seq.slots[chunk.start :]  # the slots of a rejected draft
            seq.slots.extend(next(fresh) for _ in range(chunk.width))
            chunks.append(chunk)
        if not chunks:
            continue
        same(*bench.step(chunks))
        for chunk in chunks:
            seq = chunk.sequence
            seq.computed += chunk.count
            if seq.computed == len(seq.tokens):
                seq.tokens.append(next(fresh))


def test_only_new_slots_are_told() -> None:
    bench, seq = Bench(), sequence(0, 100)
    seq.slots.extend(range(1, 101))
    bench.step([ScheduledChunk(seq, 100)])
    seq.computed = 100
    seq.tokens.append(5)
    seq.slots.append(200)
    bench.step([ScheduledChunk(seq, 1)])
    assert [len(message.slots) for message in bench.group.messages] == [800, 8]


def test_tokens_that_only_the_device_knows_follow() -> None:
    bench = Bench()
    known, unknown = sequence(0, 3), sequence(1, 2)
    for number, seq in enumerate((known, unknown)):
        seq.slots.extend(range(10 * number, 10 * number + 4))
    unknown.computed = 1
    chunks = [ScheduledChunk(known, 2), ScheduledChunk(unknown, 1, ahead=1)]
    assert chunks[1].pending_on_device
    batch, received = bench.step(chunks, DeviceTokens([1], torch.tensor([77])))
    same(batch, received)
    assert received.input_ids.tolist() == [0, 1, 77]
    assert bench.group.messages[-1].tokens is None and not bench.group.sent


def test_tensors_of_step_extensions_follow() -> None:
    bench, seq = Bench(), sequence(0, 3)
    seq.slots.extend([4, 5, 6])
    states = torch.randn(2, 8, dtype=torch.bfloat16)
    steps = {"images": RankStep(b"rows", (torch.tensor([1, 2]), states.T)), "other": RankStep(b"step data")}
    received = dict[str, RankStep]()
    prepare_step = {name: lambda step, batch, name=name: received.update({name: step}) for name in steps}
    bench.components.extensions = ForwardPoints(prepare_step=prepare_step)
    bench.step([ScheduledChunk(seq, 3)], extensions=steps)
    rows, transposed = received["images"].tensors
    assert received["images"].data == b"rows" and rows.tolist() == [1, 2]
    assert torch.equal(transposed, states.T) and received["other"] == RankStep(b"step data") and not bench.group.sent


def test_a_worker_rank_lets_extensions_prepare_the_batch_before_it_is_planned() -> None:
    bench, seq, calls = Bench(), sequence(0, 3), list[str]()
    seq.slots.extend([4, 5, 6])

    def prepare_step(step: RankStep, batch: ForwardBatch) -> None:
        calls.append(f"{step.data.decode()} {len(batch.input_ids)}")

    bench.components.extensions = ForwardPoints(prepare_step={"images": prepare_step})
    bench.components.backend = type("Backend", (), {"plan": staticmethod(lambda batch: calls.append("plan"))})
    bench.components.model = lambda batch: calls.append("model")
    batch = bench.runner.build([ScheduledChunk(seq, 3)])
    bench.ranks.step([ScheduledChunk(seq, 3)], batch, known=True, extensions={"images": RankStep(b"images")})
    bench.worker_rank.run()
    assert calls == ["images 3", "plan", "model"]


def test_rows_of_the_head() -> None:
    bench, computed = Bench(), []
    bench.components.model = type("Model", (), {"head": staticmethod(computed.append)})
    bench.worker_rank.hidden = torch.arange(12.0).view(6, 2)
    for rows in ([5, 0], slice(1, 3)):
        bench.ranks.head(rows)
        bench.worker_rank.run()
        assert torch.equal(computed[-1], bench.worker_rank.hidden[rows])


def test_the_end_is_told_once() -> None:
    bench = Bench()
    bench.ranks.close()
    bench.ranks.close()
    assert [str(message) for message in bench.group.messages] == ["End()", "closed"]
