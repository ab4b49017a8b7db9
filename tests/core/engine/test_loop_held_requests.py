"""The loop with step extensions that hold requests, and that decide where outputs end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    Constraint,
    Finish,
    HoldPhase,
    ReadySequence,
    Request,
    RequestError,
    SamplingParams,
    SamplingPhase,
    SequenceView,
    StepExtension,
    TokenDecision,
)
from sglang_plug.engine.extensions.points import ExtensionPoints, extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.messages.api_messages import Abort, Control, FromEngine, Reply, StepOutputs, Submit, ToEngine
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.schedule.deadlines import Deadlines
from sglang_plug_backends.schedule.policies import FirstCome
from tests.core.engine.loop_parts import build_loop


class Gate(StepExtension, AdmissionPhase, HoldPhase, SamplingPhase):
    """Holds requests with constraints while it is closed; a constraint's source is the number of output tokens.

    After a comma come tokens with which the output begins.
    """

    def __init__(self) -> None:
        self.is_open, self.held = False, list[SequenceView]()
        self.finished_ids: list[str] = []

    def hold(self, sequence: SequenceView) -> bool:
        constraint = sequence.request.constraint
        if constraint is None:
            return False
        if constraint.source == "refused":
            raise RequestError("not this one", 503)
        self.held.append(sequence)
        return True

    def ready(self) -> Ordered[ReadySequence]:
        held, self.held = (self.held, []) if self.is_open else ([], self.held)
        return [self._begun(sequence) for sequence in held]

    def _begun(self, sequence: SequenceView) -> ReadySequence:
        assert sequence.request.constraint is not None
        count, _, forced = sequence.request.constraint.source.partition(",")
        if count == "bad":
            return ReadySequence(sequence, finish=RequestError("expected a number", about="constraint"))
        if count == "0":
            return ReadySequence(sequence, finish=Finish("stop"))
        sequence.extras[self] = int(count)
        return ReadySequence(sequence, tuple(map(int, forced.split())))

    def finished(self, sequence: SequenceView) -> None:
        self.finished_ids.append(sequence.request.id)
        self.held = [other for other in self.held if other is not sequence]

    def constrains(self, request: Request) -> bool:
        return request.constraint is not None

    def sampled(self, sequences: Ordered[SequenceView], tokens: Ordered[int]) -> Mapping[int, TokenDecision]:
        ended = TokenDecision(Finish("stop"))
        return {
            row: ended for row, sequence in enumerate(sequences) if sequence.generated + 1 == sequence.extras.get(self)
        }


class Device:
    """A simulated device that samples token 5, after which extensions may end the output."""

    def __init__(self, extensions: ExtensionPoints) -> None:
        self._extensions = extensions

    def launch(self, chunks: list[ScheduledChunk], before: LaunchedStep | None = None) -> LaunchedStep:
        sequences = [chunk.sequence for chunk in chunks]
        decisions = self._extensions.sampling.decisions(sequences, [5] * len(chunks))
        results = [StepResult(5, finish=decisions.get(row, TokenDecision()).finish) for row in range(len(chunks))]
        return LaunchedStep(sequences, None, lambda: results)


class Bench:
    def __init__(self) -> None:
        self.messages: list[ToEngine] = []
        self.sent: list[FromEngine] = []
        self.gate, self.now = Gate(), 10.0
        extensions = extension_points({"deadlines": Deadlines(lambda: self.now), "gate": self.gate})
        self.scheduler = build_scheduler(
            SlotPool(64, 1),
            NoCache(1, LeastRecentlyUsed(), lambda: 0.0),
            FirstCome(),
            chunk_size=32,
            max_running=2,
            extensions=extensions,
        )
        self.loop = build_loop(
            self.scheduler,
            Device(extensions),
            self,
            self.sent.append,
            info={"vocab_size": 100, "context_length": 50, "tasks": ["generate"]},
            max_queued=1,
            extensions=extensions,
        )

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        assert self.messages or not wait or timeout, "the loop would wait for ever"
        taken, self.messages = self.messages, []
        return taken

    def submit(self, id: str, source: str | None = None, deadline: float | None = None, **params: Any) -> None:
        constraint = None if source is None else Constraint("regex", source)
        params = {"max_new_tokens": 8, "stop_token_ids": (5,), **params}
        request = Request(
            id=id, tokens=(1, 2), params=SamplingParams(**params), constraint=constraint, deadline=deadline
        )
        self.messages.append(Submit(request))

    def control(self, name: str, **arguments: Any) -> Reply:
        self.messages.append(Control(1, name, arguments))
        self.loop.step()
        (reply,) = [message for message in self.sent if isinstance(message, Reply)]
        self.sent.remove(reply)
        return reply

    def outputs(self, id: str) -> list[Any]:
        updates = [message for message in self.sent if isinstance(message, StepOutputs)]
        return [output for step in updates for output in step.outputs if output.id == id]

    def end(self, id: str) -> Finish:
        for _ in range(100):
            if any(output.finish for output in self.outputs(id)):
                break
            self.loop.step()
        finish = self.outputs(id)[-1].finish
        assert finish is not None
        return finish


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_others_are_served_meanwhile_and_then_the_extension_says_where_it_ends(bench: Bench) -> None:
    bench.submit("held", "3")
    bench.submit("plain")
    assert bench.end("plain") == Finish("stop", matched=5)
    assert bench.loop.busy and not bench.scheduler.busy and bench.outputs("held") == []
    bench.gate.is_open = True
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
    assert [output.finish.status for output in bench.outputs("held")] == [400], "the id is taken"


def test_a_deadline_that_passes_while_a_request_is_held_ends_it(bench: Bench) -> None:
    bench.submit("late", "3", deadline=11.0)
    bench.submit("timely", "3", deadline=100.0)
    bench.loop.step()
    assert bench.outputs("late") == []
    bench.now = 11.0
    bench.loop.step()
    assert bench.end("late").status == 504 and len(bench.outputs("late")) == 1
    assert [sequence.request.id for sequence in bench.gate.held] == ["timely"]
    assert bench.gate.finished_ids == ["late"]
    bench.gate.is_open = True
    assert bench.end("timely") == Finish("stop")
    assert not bench.loop.busy


def test_a_request_whose_deadline_has_passed_is_not_held_at_all(bench: Bench) -> None:
    bench.submit("late", "3", deadline=9.0)
    bench.loop.step()
    assert bench.end("late").status == 504 and "before the request reached the engine" in bench.end("late").message
    assert bench.gate.held == [] and not bench.loop.busy


def test_a_held_request_can_be_aborted(bench: Bench) -> None:
    bench.submit("held", "3")
    bench.loop.step()
    bench.messages.append(Abort(("held",)))
    assert bench.end("held").reason == "abort"
    assert not bench.loop.busy
    bench.gate.is_open = True
    bench.submit("held", "1")
    bench.sent.clear()
    assert bench.end("held").reason == "stop"


def test_a_request_that_cannot_begin_is_the_callers_error(bench: Bench) -> None:
    bench.gate.is_open = True
    bench.submit("bad", "bad")
    finish = bench.end("bad")
    assert (finish.reason, finish.status, finish.message) == ("error", 400, "expected a number")
    assert finish.about == "constraint"
    bench.submit("refused", "refused")
    assert (bench.end("refused").status, bench.end("refused").message) == (503, "not this one")
    bench.submit("good", "1")
    assert bench.end("good").reason == "stop"


def test_an_output_that_has_ended_before_it_begins(bench: Bench) -> None:
    bench.gate.is_open = True
    bench.submit("empty", "0")
    assert bench.end("empty") == Finish("stop")
    assert [output.tokens for output in bench.outputs("empty")] == [()]
    assert not bench.loop.busy


def test_the_limit_still_holds(bench: Bench) -> None:
    bench.gate.is_open = True
    bench.submit("long", "20")
    assert bench.end("long").reason == "length"
    assert len(bench.outputs("long")) == 8


def test_an_output_begins_with_the_tokens_that_are_forced(bench: Bench) -> None:
    bench.gate.is_open = True
    bench.submit("forced", "4,7 8")
    assert bench.end("forced") == Finish("stop")
    assert [token for output in bench.outputs("forced") for token in output.tokens] == [7, 8, 5, 5]


def test_too_many_forced_tokens_end_the_request_and_not_the_engine(bench: Bench) -> None:
    bench.gate.is_open = True
    bench.submit("forced", "9," + "7 " * 100)
    assert bench.end("forced").status == 500 and "'gate': ready() forces 100 tokens" in bench.end("forced").message
    assert not bench.loop.busy and bench.gate.finished_ids == ["forced"]
    bench.submit("next", "1")
    assert bench.end("next") == Finish("stop")


def test_every_admitted_request_is_finished_once(bench: Bench) -> None:
    for id, source in (("aborted", "3"), ("served", "2"), ("refused", "refused")):
        bench.submit(id, source)
        bench.loop.step()
    bench.messages.append(Abort(("aborted",)))
    bench.loop.step()
    bench.gate.is_open = True
    bench.end("served")
    for id, source in (("bad", "bad"), ("empty", "0")):
        bench.submit(id, source)
        bench.end(id)
    assert bench.gate.finished_ids == ["refused", "aborted", "served", "bad", "empty"]
    assert bench.gate.held == []
