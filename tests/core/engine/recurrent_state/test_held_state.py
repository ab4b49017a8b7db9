"""The loop while requests wait for their grammars."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from sglang_plug import Constraint, ConstraintError, Finish, Request, SamplingParams, Vocabulary
from sglang_plug.engine.execution.in_flight_step import LaunchedStep
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.processes.messages import Abort, Control, FromEngine, Reply, StepOutputs, Submit, ToEngine
from sglang_plug.engine.processes.watchdog import Heartbeat
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.scheduling.sequence import Sequence
from sglang_plug.engine.structured_outputs.batch_grammars import GrammarResult
from sglang_plug.engine.structured_outputs.constraints import Constraints
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.schedule.policies import FirstCome


class Counter:
    """A grammar of so many tokens."""

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def ended(self) -> bool:
        return self.left == 0


class Gate:
    """Compiles once it is opened; a source is the number of tokens."""

    vocabulary = Vocabulary([])

    def __init__(self) -> None:
        self.opened = threading.Event()

    def start(self) -> Any:
        return self

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        self.opened.wait()
        if constraint.source == "bad":
            raise ConstraintError("expected a number")
        return constraint.source.encode()

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Any]:
        return lambda: Counter(int(compiled))

    def memory(self, compiled: bytes) -> int:
        return len(compiled)

    def interrupt(self) -> None:
        self.opened.set()

    def close(self) -> None:
        pass


class Device:
    """Counts grammars down."""

    def open(self, sequences: list[Sequence]) -> dict[int, GrammarResult]:
        return {}

    def launch(self, shares: list[ScheduledChunk], before: LaunchedStep | None = None) -> LaunchedStep:
        results = [self._sampled(share) for share in shares]
        return LaunchedStep([share.sequence for share in shares], None, lambda: results)

    def _sampled(self, share: ScheduledChunk) -> StepResult:
        grammar: Any = share.sequence.grammar
        if grammar is None:
            return StepResult(5)
        grammar.left -= 1
        return StepResult(5, finish=Finish("stop") if grammar.ended else None)


class Bench:
    def __init__(self) -> None:
        self.messages: list[ToEngine] = []
        self.sent: list[FromEngine] = []
        self.gate = Gate()
        self.constraints = Constraints(self.gate)
        self.scheduler = Scheduler(
            SlotPool(64, 1), NoCache(1, LeastRecentlyUsed(), lambda: 0.0), FirstCome(), chunk_size=32, max_running=2
        )
        self.loop = EngineLoop(
            self.scheduler,
            Device(),  # type: ignore[arg-type]
            self,
            self.sent.append,
            info={"vocab_size": 100, "context_length": 50, "tasks": ["generate"]},
            max_queued=1,
            heartbeat=Heartbeat(),
            update_weights=lambda source, revision: source,  # type: ignore[arg-type,return-value]
            constraints=self.constraints,
        )

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        assert self.messages or not wait or timeout, "the loop would wait for ever"
        taken, self.messages = self.messages, []
        return taken

    def submit(self, id: str, source: str | None = None, **params: Any) -> None:
        constraint = None if source is None else Constraint("regex", source)
        params = {"max_new_tokens": 8, "stop_token_ids": (5,), **params}
        request = Request(id=id, tokens=(1, 2), params=SamplingParams(**params), constraint=constraint)
        self.messages.append(Submit(request))

    def control(self, name: str, **arguments: Any) -> Reply:
        self.messages.append(Control(1, name, arguments))
        self.loop.step()
        (reply,) = [one for one in self.sent if isinstance(one, Reply)]
        self.sent.remove(reply)
        return reply

    def outputs(self, id: str) -> list[Any]:
        news = [one for one in self.sent if isinstance(one, StepOutputs)]
        return [output for one in news for output in one.outputs if output.id == id]

    def end(self, id: str) -> Finish:
        deadline = time.monotonic() + 240
        while not any(output.finish for output in self.outputs(id)):
            assert time.monotonic() < deadline
            self.loop.step()
        finish = self.outputs(id)[-1].finish
        assert finish is not None
        return finish


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.constraints.close()


def test_others_are_served_meanwhile_and_then_the_grammar_says_where_it_ends(bench: Bench) -> None:
    bench.submit("held", "3")
    bench.submit("plain")
    assert bench.end("plain") == Finish("stop", matched=5)
    assert bench.loop.busy and not bench.scheduler.busy and bench.outputs("held") == []
    bench.gate.opened.set()
    assert bench.end("held") == Finish("stop")
    assert len(bench.outputs("held")) == 3
    assert not bench.loop.busy


def test_held_requests_count_as_waiting(bench: Bench) -> None:
    bench.submit("held", "3")
    assert bench.control("info").value["waiting"] == 1
    assert bench.control("flush_cache").value["success"] is False
    assert bench.control("update_weights", source="x").status == 409
    for number in range(3):
        bench.submit(f"more{number}", "3")
    assert bench.end("more2").status == 503
    bench.submit("held", "3")
    bench.loop.step()
    assert [one.finish.status for one in bench.outputs("held")] == [400], "the id is taken"


def test_a_held_request_can_be_aborted(bench: Bench) -> None:
    bench.submit("held", "3")
    bench.loop.step()
    bench.messages.append(Abort(("held",)))
    assert bench.end("held").reason == "abort"
    assert not bench.loop.busy
    bench.gate.opened.set()
    bench.submit("held", "1")
    bench.sent.clear()
    assert bench.end("held").reason == "stop"


def test_a_bad_constraint_is_the_callers_error(bench: Bench) -> None:
    bench.gate.opened.set()
    bench.submit("bad", "bad")
    finish = bench.end("bad")
    assert (finish.reason, finish.status, finish.message) == ("error", 400, "regex: expected a number")
    bench.submit("good", "1")
    assert bench.end("good").reason == "stop"


def test_an_output_that_has_ended_before_it_begins(bench: Bench) -> None:
    bench.gate.opened.set()
    bench.submit("empty", "0")
    assert bench.end("empty") == Finish("stop")
    assert [one.tokens for one in bench.outputs("empty")] == [()]
    assert not bench.loop.busy


def test_the_limit_still_holds(bench: Bench) -> None:
    bench.gate.opened.set()
    bench.submit("long", "20")
    assert bench.end("long").reason == "length"
    assert len(bench.outputs("long")) == 8
