"""The engine loop with a function in place of the device."""

from __future__ import annotations

import functools
import gc
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    CachePhase,
    HoldPhase,
    LogprobOptions,
    QueuePhase,
    QueueView,
    Request,
    RequestError,
    SamplingParams,
    SequenceView,
    ServicePhase,
    StepExtension,
    StepStats,
)
from sglang_plug.config import ConfigError
from sglang_plug.engine.execution.pipeline import MAX_CONSECUTIVE_FAILURES
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.messages.api_messages import Abort, Close, Control, FromEngine, Reply, StepOutputs, Submit
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.deadlines import Deadlines
from sglang_plug_backends.schedule.policies import FirstCome
from tests.core.engine.execution.pipeline_bench import QueuedInbox
from tests.core.engine.loop_parts import build_loop


class Device:
    """A simulated device that always samples token 5, and that fails in the next ``failures`` steps."""

    model: Any = None

    def __init__(self) -> None:
        self.failures = 0

    def launch(self, chunks: list[ScheduledChunk], before: LaunchedStep | None = None) -> LaunchedStep:
        if self.failures:
            self.failures -= 1
            raise MemoryError("no memory left")
        results = [StepResult(5 if chunk.complete else None) for chunk in chunks]
        return LaunchedStep([chunk.sequence for chunk in chunks], None, lambda: results)


class Bench:
    """An engine loop with a simulated device, its inbox and the messages that it sent."""

    def __init__(
        self,
        overlap: bool = False,
        extensions: Mapping[str, StepExtension] | None = None,
        max_queued: int = 1,
        **info: Any,
    ) -> None:
        self.inbox, self.device, self.sent = QueuedInbox(), Device(), list[FromEngine]()
        cache = RadixCache(1, LeastRecentlyUsed(), lambda: 0.0)
        points = extension_points(extensions or {}, {"constraint": "nobody serves it"})
        preemption = Preemption(extension=points.planning.preemption)
        self.scheduler = build_scheduler(
            SlotPool(64, 1),
            cache,
            FirstCome(),
            chunk_size=32,
            max_running=2,
            extensions=points,
            preemption=preemption,
        )
        info = {"vocab_size": 100, "context_length": 50, "tasks": ["generate"], **info}
        self.loop = build_loop(
            self.scheduler,
            self.device,
            self.inbox,
            self.sent.append,
            info=info,
            max_queued=max_queued,
            update_weights=self.load,
            overlap=overlap,
            extensions=points,
        )
        self.loaded: list[tuple[str, str | None]] = []

    def load(self, source: str, revision: str | None) -> None:
        self.loaded.append((source, revision))
        if source == "nowhere":
            raise RequestError("Failed to get weights iterator: nowhere (not found).")
        self.device.model = f"model of {source}"

    def submit(self, id: str, tokens: Iterable[int] = (1, 2, 3), **request: Any) -> None:
        params = SamplingParams(**{"max_new_tokens": 3, **request.pop("params", {})})
        self.inbox.messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params, **request)))

    def run(self) -> None:
        self.loop.step()
        while self.scheduler.busy:
            self.loop.step()

    def stats(self) -> StepStats:
        """Return the statistics of the last step."""
        return [message.stats for message in self.sent if isinstance(message, StepOutputs) and message.stats][-1]

    def tokens(self, id: str) -> list[int]:
        updates = [message for message in self.sent if isinstance(message, StepOutputs)]
        return [token for step in updates for output in step.outputs if output.id == id for token in output.tokens]

    def end(self, id: str) -> tuple[str, int, str]:
        for message in self.sent:
            for output in message.outputs if isinstance(message, StepOutputs) else ():
                if output.id == id and output.finish is not None:
                    return output.finish.reason, output.finish.status, output.finish.message
        raise AssertionError(f"{id} has not ended")


Make = Callable[..., Bench]


@pytest.fixture(params=[False, True], ids=["one-by-one", "overlapped"])
def make(request: pytest.FixtureRequest) -> Make:
    return functools.partial(Bench, overlap=request.param)


def test_a_request_is_served_and_its_id_is_free_again(make: Make) -> None:
    bench = make()
    for _ in range(2):
        bench.submit("a")
        bench.run()
    assert bench.tokens("a") == [5] * 6
    assert bench.end("a")[0] == "length"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"tokens": ()}, "no tokens"),
        ({"tokens": range(60)}, "longer than the model's context length"),
        ({"tokens": (1, 100)}, "not in the vocabulary"),
        ({"tokens": (-1,)}, "not in the vocabulary"),
        ({"params": {"stop_token_ids": (100,)}}, "not in the vocabulary"),
        ({"params": {"logit_bias": {-5: 1.0}}}, "not in the vocabulary"),
        ({"logprobs": LogprobOptions(ids=(100,))}, "not in the vocabulary"),
        ({"task": "embed"}, "does not support the task embed"),
    ],
)
def test_bad_requests_are_refused(make: Make, request_: dict[str, Any], words: str) -> None:
    bench = make()
    bench.submit("a", **request_)
    bench.run()
    reason, status, message = bench.end("a")
    assert (reason, status) == ("error", 400) and words in message


def test_a_prompt_that_the_pool_cannot_hold_is_refused(make: Make) -> None:
    bench = make(context_length=1000)
    bench.submit("a", tokens=[1] * 64)
    bench.run()
    assert "--max-total-tokens" in bench.end("a")[2]


def test_duplicates_and_a_full_queue_are_refused_at_once(make: Make) -> None:
    bench = make()
    for id in ("a", "a", "b", "c", "d"):
        bench.submit(id)
    bench.run()
    assert "Duplicate request ID" in bench.end("a")[2]
    assert bench.end("d")[1] == 503
    assert bench.tokens("c") == [5] * 3


def test_one_failing_step_ends_its_requests_only(make: Make) -> None:
    bench = make()
    bench.device.failures = 1
    bench.submit("a")
    bench.loop.step()
    bench.submit("b")
    bench.run()
    assert bench.end("a")[:2] == ("error", 500) and "no memory left" in bench.end("a")[2]
    assert bench.tokens("b") == [5] * 3


def test_steps_that_keep_failing_end_the_engine(make: Make) -> None:
    bench = make()
    bench.device.failures = 100
    with pytest.raises(MemoryError):
        for index in range(MAX_CONSECUTIVE_FAILURES):
            bench.submit(str(index))
            bench.loop.step()


def test_abort_is_answered_and_frees_the_slots(make: Make) -> None:
    bench = make()
    bench.submit("a", tokens=[1] * 40)
    bench.loop.step()
    bench.inbox.messages.append(Abort(("a", "unknown")))
    bench.run()
    assert bench.end("a")[0] == "abort"
    assert bench.scheduler.accounts()["running"] == 0


def test_control_calls(make: Make) -> None:
    bench = make()
    bench.submit("a")
    bench.inbox.messages += [Control(1, "flush_cache", {}), Control(2, "nonsense", {}), Control(3, "check", {"x": 1})]
    bench.run()
    bench.inbox.messages += [Control(4, "flush_cache", {}), Control(5, "info", {})]
    bench.run()
    replies = {message.number: message for message in bench.sent if isinstance(message, Reply)}
    assert replies[1].value["success"] is False and replies[4].value["success"] is True
    assert replies[2].status == 404 and replies[3].status == 500
    assert replies[5].value["slots"] == {"free": 64, "cached": 0, "running": 0, "capacity": 64}


def test_close_ends_the_loop(make: Make) -> None:
    faulty = Faulty()
    bench = make(extensions={"faulty": faulty})
    bench.submit("running")
    bench.inbox.messages.append(Close())
    bench.loop.run()
    assert len(bench.tokens("running")) <= 1, "no step is planned after the one under way"
    assert faulty.closed == 1


def test_weights_are_replaced_between_requests_only(make: Make) -> None:
    bench = make()
    bench.submit("first")
    bench.run()
    assert bench.scheduler.cache.size > 0
    bench.submit("running")
    bench.loop.step()
    bench.loop.handle(Control(1, "update_weights", {"source": "new"}))
    assert bench.sent[-1].status == 409
    assert bench.loaded == []
    bench.run()
    bench.loop.handle(Control(2, "update_weights", {"source": "new", "revision": "main"}))
    assert bench.sent[-1].value == {"success": True, "message": "Succeeded to update model weights."}
    assert bench.device.model == "model of new"
    assert bench.scheduler.cache.size == 0
    assert bench.loaded == [("new", "main")]


class Knotted:
    """A model with a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.usefixtures("nothing_frozen")
def test_a_replaced_model_is_freed_though_the_collector_was_told_to_look_no_more(make: Make, frozen: bool) -> None:
    """The model is freed even if ``gc.freeze`` was called, as the engine's process does after loading."""
    bench, model = make(), Knotted()
    old, bench.device.model = weakref.ref(model), model
    del model
    if frozen:
        gc.freeze()
    bench.loop.handle(Control(1, "update_weights", {"source": "new"}))
    assert old() is None
    assert (gc.get_freeze_count() > 0) is frozen


def test_weights_that_cannot_be_loaded_leave_the_old_ones(make: Make) -> None:
    bench = make()
    bench.device.model = "old"
    bench.loop.handle(Control(1, "update_weights", {"source": "nowhere"}))
    assert bench.sent[-1].status == 400
    assert bench.sent[-1].error == "Failed to get weights iterator: nowhere (not found)."
    assert bench.device.model == "old"


class Controlled(StepExtension, ServicePhase):
    """A step extension whose control calls come from a function."""

    def __init__(self, calls: Callable[[], Any]) -> None:
        self._calls = calls

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        calls: Mapping[str, Callable[..., Any]] = self._calls()
        return calls


def test_control_calls_of_extensions_are_collected_again_with_new_weights(make: Make) -> None:
    models = iter(("old", "new"))
    extension = Controlled(lambda: {"who": functools.partial(str, next(models))})
    bench = make(extensions={"who": extension})
    bench.loop.handle(Control(1, "who", {}))
    assert bench.sent[-1].value == "old"
    bench.loop.handle(Control(2, "update_weights", {"source": "new"}))
    bench.loop.handle(Control(3, "who", {}))
    assert bench.sent[-1].value == "new"


def test_an_extension_may_not_replace_control_calls_of_the_engine(make: Make) -> None:
    message = "the engine and step-extension 'flush' both have the control call 'flush_cache'; block one of them"
    with pytest.raises(ConfigError, match=message):
        make(extensions={"flush": Controlled(lambda: {"flush_cache": print})})


def test_new_weights_are_not_served_with_old_prefixes_although_their_control_calls_collide(make: Make) -> None:
    names = iter(("old", "flush_cache"))
    bench = make(extensions={"who": Controlled(lambda: {next(names): print})})
    bench.submit("a")
    bench.run()
    bench.loop.handle(Control(1, "update_weights", {"source": "new"}))
    assert "both have the control call 'flush_cache'" in bench.sent[-1].error and bench.scheduler.cache.size == 0


class ForgetsNothing(Controlled, CachePhase):
    def reset(self) -> None:
        raise RuntimeError("cannot forget")


def test_control_calls_are_collected_again_although_an_extension_fails_to_forget(make: Make) -> None:
    models = iter(("old", "new"))
    bench = make(extensions={"who": ForgetsNothing(lambda: {"who": functools.partial(str, next(models))})})
    bench.loop.handle(Control(1, "update_weights", {"source": "new"}))
    assert "cannot forget" in bench.sent[-1].error
    bench.loop.handle(Control(2, "who", {}))
    assert bench.sent[-1].value == "new"


class Informs(StepExtension, ServicePhase):
    def __init__(self, **data: Any) -> None:
        self.data = data

    def info(self) -> Mapping[str, Any]:
        return self.data


@pytest.mark.parametrize("name", ["vocab_size", "running", "slots"])
def test_an_extension_may_not_replace_facts_of_the_engine(make: Make, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^the engine and step-extension 'a' both have '{name}' in info\(\)"):
        make(extensions={"a": Informs(**{name: 1})})


def test_two_extensions_may_not_have_the_same_name_in_info(make: Make) -> None:
    bench = make(extensions={"a": Informs(adapters=1), "b": Informs(stores=2)})
    bench.loop.handle(Control(1, "info", {}))
    assert bench.sent[-1].value["adapters"] == 1 and bench.sent[-1].value["stores"] == 2
    with pytest.raises(ConfigError, match=r"^step-extension 'a' and step-extension 'b' both have 'adapters' in info"):
        make(extensions={"a": Informs(adapters=1), "b": Informs(adapters=2)})


def test_a_request_whose_deadline_has_passed_costs_nothing(make: Make) -> None:
    bench = make(extensions={"deadlines": Deadlines()})
    bench.submit("late", deadline=time.time() - 1.0)
    bench.submit("early", deadline=time.time() + 1000.0)
    bench.run()
    assert bench.end("late")[:2] == ("error", 504) and "deadline" in bench.end("late")[2]
    assert bench.tokens("late") == [] and bench.end("early")[0] == "length"
    bench.submit("late")
    bench.run()
    assert len(bench.tokens("late")) == 3


def test_a_request_whose_deadline_passes_in_the_queue_is_refused(make: Make) -> None:
    clock = [100.0]
    bench = make(max_queued=5, extensions={"deadlines": Deadlines(lambda: clock[0])})
    for id in ("first", "second", "third"):  # two run, one waits
        bench.submit(id, deadline=150.0, params={"max_new_tokens": 40})
    bench.loop.step()
    clock[0] = 151.0
    bench.run()
    assert bench.end("third")[1] == 504 and bench.tokens("third") == []
    assert bench.end("first")[0] == bench.end("second")[0] == "length"


class TenTokensPerSecond(Deadlines):
    """Deadlines that measure a rate of ten prompt tokens per second."""

    def step_done(self, stats: StepStats) -> None:
        super().step_done(replace(stats, prefill_tokens=10, cached_tokens=0, seconds=1.0))


def test_a_deadline_that_the_queue_does_not_allow_is_refused_at_once() -> None:
    bench = Bench(max_queued=10, extensions={"deadlines": TenTokensPerSecond(lambda: 100.0)})
    bench.submit("running", params={"max_new_tokens": 40})
    bench.submit("other", params={"max_new_tokens": 40})
    bench.loop.step()
    bench.submit("before", tokens=[1] * 30, arrived=1.0)
    bench.submit("impossible", tokens=[1] * 5, deadline=103.0, arrived=2.0)
    bench.submit("possible", tokens=[1] * 5, deadline=104.0, arrived=2.0)
    bench.run()
    assert bench.end("impossible")[1] == 504 and "queue" in bench.end("impossible")[2]
    assert bench.end("possible")[0] == "length"


def test_an_aborted_request_is_not_refused_later(make: Make) -> None:
    clock = [100.0]
    bench = make(max_queued=5, extensions={"deadlines": Deadlines(lambda: clock[0])})
    for id in ("first", "second", "third"):
        bench.submit(id, deadline=150.0, params={"max_new_tokens": 40})
    bench.loop.step()
    bench.inbox.messages.append(Abort(("third",)))
    bench.loop.step()
    bench.submit("third", params={"max_new_tokens": 2})
    bench.loop.step()
    clock[0] = 151.0
    bench.run()
    assert bench.tokens("third") == [5, 5]


class Housekeeping(StepExtension, ServicePhase):
    """A step extension that counts the calls of ``between_steps``."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout, self.calls = timeout, 0

    def idle_timeout(self) -> float | None:
        return self.timeout

    def between_steps(self) -> None:
        self.calls += 1


def test_extensions_act_before_each_step_and_while_the_engine_is_idle() -> None:
    extensions = {str(timeout): Housekeeping(timeout) for timeout in (None, 9.0, 7.0)}
    bench = Bench(extensions=extensions)
    timeouts, take = [], bench.inbox.take

    def noted(wait: bool, timeout: float | None = None) -> Any:
        timeouts.append(timeout if wait else None)
        return take(wait, timeout)

    bench.inbox.take = noted  # type: ignore[method-assign]
    bench.loop.step()
    assert timeouts == [7.0]
    bench.submit("a", params={"max_new_tokens": 4})
    bench.run()
    assert timeouts == [7.0, 7.0, None, None, None]
    assert [extension.calls for extension in extensions.values()] == [5, 5, 5]


def test_an_engine_without_such_extensions_waits_for_messages() -> None:
    bench = Bench(extensions={"a": Housekeeping(None)})
    with pytest.raises(AssertionError, match="wait for ever"):
        bench.loop.step()


class Faulty(StepExtension, AdmissionPhase, HoldPhase, QueuePhase):
    """A step extension that fails in the method named by a request's caller, and counts the open requests."""

    def __init__(self) -> None:
        self.open = self.closed = 0

    def admit(self, sequence: SequenceView) -> None:
        self.open += 1
        if sequence.request.caller == "admit":
            self.open -= 1
            raise KeyError("in admit")

    def hold(self, sequence: SequenceView) -> bool:
        if sequence.request.caller == "hold":
            raise KeyError("in hold")
        return False

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        if sequence.request.caller == "queued":
            raise KeyError("in queued")

    def finished(self, sequence: SequenceView) -> None:
        self.open -= 1

    def close(self) -> None:
        self.closed += 1


class Answers(StepExtension, ServicePhase):
    """A step extension with three control calls, of which two return values that no message can contain."""

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        return {"path": lambda: {"folder": Path("/tmp")}, "number": lambda: 2**70, "text": lambda: "ok"}


@pytest.mark.parametrize("method", ["admit", "hold", "queued"])
def test_an_extension_that_fails_to_admit_a_request_ends_that_request_only(method: str) -> None:
    first, faulty = Faulty(), Faulty()
    bench = Bench(max_queued=9, extensions={"first": first, "faulty": faulty})
    bench.submit("good")
    bench.submit("bad", caller=method)
    bench.submit("other")
    bench.run()
    assert bench.end("bad")[:2] == ("error", 500) and f"in {method}" in bench.end("bad")[2]
    assert bench.end("good")[0] == bench.end("other")[0] == "length"
    assert first.open == faulty.open == 0 and not bench.loop.busy


@pytest.mark.parametrize(("name", "message"), [("path", "PosixPath"), ("number", "int")])
def test_a_result_of_a_control_call_that_cannot_be_sent_is_an_error_of_the_call(name: str, message: str) -> None:
    bench = Bench(extensions={"answers": Answers()})
    for call in (name, "text"):
        bench.inbox.messages.append(Control(1, call, {}))
    bench.loop.step()
    failed, fine = [reply for reply in bench.sent if isinstance(reply, Reply)]
    assert failed.status == 500 and message in str(failed.error)
    assert fine.value == "ok"


def test_extensions_are_closed_if_the_start_fails() -> None:
    faulty = Faulty()
    bench = Bench(extensions={"faulty": faulty})

    def fail() -> None:
        raise RuntimeError("a component does not start")

    with pytest.raises(RuntimeError, match="does not start"):
        bench.loop.run(fail)
    assert faulty.closed == 1
