"""The engine loop: receive messages, schedule a step, run it, send the outputs. Read this file first."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from sglang_plug.config import ConfigError
from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.contracts.request import Finish, Output, Request, RequestError
from sglang_plug.contracts.sampling_params import RequestFieldError
from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge, StepStats
from sglang_plug.engine.admission.activity import activity
from sglang_plug.engine.admission.open_requests import OpenRequests, RequestChecks, SchedulerQueueView
from sglang_plug.engine.execution.pipeline import Pipeline
from sglang_plug.engine.extensions.held_sequences import HeldSequences
from sglang_plug.engine.extensions.metrics import ExtensionMetrics
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.messages.api_messages import (
    Abort,
    Close,
    Control,
    FromEngine,
    Pause,
    Reply,
    Resume,
    StepOutputs,
    Submit,
    ToEngine,
    check_sendable,
)
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.system.freed_memory import return_freed_memory
from sglang_plug.system.library_panics import panics_as_errors

from .watchdog import Heartbeat

logger = logging.getLogger(__name__)

Controls = Mapping[str, Callable[..., Any]]
"""Name of a control call -> function of keyword arguments that returns plain data."""
OWN_INFO = ("slots", "running", "waiting", "paused")
"""Names in ``info`` of the engine's load, besides the facts that it is started with."""
METRICS_PERIOD = 1.0
"""Seconds between two reports of the counters and gauges of step extensions."""
POLL = 0.005
"""Seconds between two checks whether held requests are ready, while there is nothing else to do."""


class Inbox(Protocol):
    """The queue in which messages to the engine arrive."""

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return all messages that have arrived; if ``wait``, wait up to ``timeout`` seconds for at least one."""


class EngineLoop:
    """Serves one model.

    Args:
        pipeline: plans steps with the scheduler, and runs them on the device.
        inbox: the queue of incoming messages.
        send: sends a message to the API.
        info: facts about the model and the choices made at start.
        max_queued: number of sequences that may wait.
        heartbeat: notified when a step begins and ends.
        update_weights: replaces the model's weights by those of a checkpoint and revision.
        describe: returns an error in one line, with the plugin whose code raised it.
        ranks: the other ranks that share the model; they end with the engine.
        extensions: the extension points of the engine; the extensions end with it.
        processors: the logits processors that requests may use.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        inbox: Inbox,
        send: Callable[[FromEngine], None],
        *,
        info: dict[str, Any],
        max_queued: int,
        heartbeat: Heartbeat,
        update_weights: Callable[[str, str | None], None],
        describe: Callable[[BaseException], str],
        ranks: Ranks | None,
        extensions: ExtensionPoints,
        processors: LogitsProcessors,
    ) -> None:
        scheduler = pipeline.scheduler
        self.describe = describe
        self.pipeline = pipeline
        self.scheduler = scheduler
        self.runner = pipeline.runner
        self.inbox = inbox
        self.send = send
        self.extensions = extensions
        self._metrics = ExtensionMetrics(self.extensions.service, describe)
        self._own_info = (*info, *OWN_INFO)
        self.info = {**info, **self.extensions.service.all_info(self._own_info)}
        self.heartbeat = heartbeat
        self.longest = min(info["context_length"], scheduler.pool.capacity)
        self._checks = RequestChecks(info, self.longest, max_queued)
        self._load_weights = update_weights
        self.ranks = ranks
        self._queue_view = SchedulerQueueView(scheduler)
        self.requests = OpenRequests()
        self.held = HeldSequences(self.extensions.requests)
        self.processors = processors
        self._closed = False
        self._next_metrics = 0.0
        self._controls = self._all_controls()

    def run(self, begin: Callable[[], None] = lambda: None) -> None:
        """Call ``begin``, and serve until ``Close`` arrives; release everything at the end, also after an error.

        Raises the error of a step if steps fail several times in a row.
        """
        try:
            begin()
            while not self._closed:
                self.step()
        except Exception as error:
            if self.ranks is not None and (lost := self.ranks.lost()) is not None:
                raise RuntimeError(lost) from error
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Release everything that other processes or extensions hold, even if releasing one of them fails."""
        with ExitStack() as stack:
            if self.ranks is not None:
                stack.callback(self.ranks.close)
            for close in self.extensions.service.close:
                stack.callback(close)

    @property
    def busy(self) -> bool:
        """True while a request is being served."""
        return self.scheduler.busy or len(self.held) > 0 or len(self.scheduler.paused) > 0

    def step(self) -> None:
        """Run one iteration: handle messages, run one step of the model, send its outputs."""
        self._queue_view.forget_matches()
        timeout = POLL if len(self.held) else self.extensions.service.shortest_idle_timeout()
        messages = list(self.inbox.take(wait=not self.scheduler.busy, timeout=timeout))
        if self.pipeline.in_flight and any(isinstance(message, Control | Pause) for message in messages):
            self._advance(ahead=False)  # control calls and pauses need a state without a step in flight
        for message in messages:
            self.handle(message)
        cached = self.scheduler.cache.size
        for between_steps in self.extensions.service.between_steps:
            between_steps()
        if self.scheduler.cache.size != cached:
            self._report_idle_stats()
        self.pipeline.forget_dropped()
        if len(self.held):
            self._release()
        for sequence, refusal in self.extensions.requests.end_waiting():
            self._refuse_waiting(sequence, refusal)
        if self.scheduler.busy:
            self._advance()

    def _advance(self, *, ahead: bool = True) -> None:
        """Run one step and send its outputs."""
        with self.heartbeat:
            started = time.perf_counter()
            outputs = self.pipeline.step(ahead=ahead)
            for output in outputs:
                if output.finish is not None:
                    self.requests.end(output.id)
            stats = self._stats(time.perf_counter() - started)
            for step_done in self.extensions.service.step_done:
                step_done(stats)
            self.send(StepOutputs(outputs, stats))
        if not self.scheduler.busy:
            self.scheduler.check()

    def handle(self, message: ToEngine) -> None:
        """Handle one message."""
        match message:
            case Submit(request):
                self._submit(request)
            case Abort(ids):
                for id in ids:
                    self._abort(id)
            case Pause(ids):
                for id in ids:
                    self.scheduler.pause(id)
                self._report_idle_stats()
            case Resume(ids):
                for id in ids:
                    self.scheduler.resume(id)
            case Control():
                self.send(self._control(message))
            case Close():
                self._closed = True

    def _submit(self, request: Request) -> None:
        try:
            with panics_as_errors():
                sequence = self._admitted(request)
                is_held = self.held.hold(sequence)
        except Exception as error:
            self._end(request.id, _refused(self._refusal(request.id, error)))
            return
        self.requests.add(sequence)
        if not is_held:
            self._queue(sequence)

    def _admitted(self, request: Request) -> Sequence:
        """Return the sequence of a request that the engine and all extensions admit. Raises their errors."""
        self._checks.check(request, self.requests, self.scheduler, held=len(self.held))
        constrained = self.extensions.requests.is_constrained(request)
        processors = self.processors.admit(request, constrained=constrained) if request.task == "generate" else ()
        sequence = Sequence.of(request, self.longest, constrained=constrained, processors=processors)
        self.extensions.requests.admit_sequence(sequence)
        return sequence

    def _release(self) -> None:
        """Queue the sequences that no step extension holds any more, unless their requests have ended."""
        for sequence, finish in self.held.release():
            if finish is None:
                self._queue(sequence)
                continue
            self.requests.end(sequence.request.id)
            self._end(sequence.request.id, finish if isinstance(finish, Finish) else _refused(finish))

    def _queue(self, sequence: Sequence) -> None:
        """Queue a sequence, unless a step extension refuses it."""
        try:
            with panics_as_errors():
                self.scheduler.add(sequence)
                self.extensions.requests.sequence_queued(sequence, self._queue_view)
        except Exception as error:
            self._refuse_waiting(sequence, self._refusal(sequence.request.id, error))

    def _refusal(self, id: str, error: Exception) -> RequestError:
        """Return the refusal of a request whose admission failed: an internal error unless it is a ``RequestError``."""
        if isinstance(error, RequestError):
            return error
        if isinstance(error, RequestFieldError):
            return RequestError(str(error), about="processor_fields", field=error.field)
        logger.error("request %r could not be admitted", id, exc_info=error)
        return RequestError(self.describe(error), 500)

    def _refuse_waiting(self, named: SequenceView, refusal: RequestError) -> None:
        """End a request that waits in the queue, or is held, with an error; do nothing if it has begun, or is over."""
        sequence = self.requests.find(named)
        if sequence is not None and not sequence.was_admitted:
            self._end_open(sequence.request.id, _refused(refusal))

    def _end(self, id: str, finish: Finish) -> None:
        """Send the only output of a request that was never computed."""
        self.send(StepOutputs([Output(id=id, finish=finish)]))

    def _abort(self, id: str) -> None:
        if id in self.requests:
            self._end_open(id, Finish("abort"))

    def _end_open(self, id: str, finish: Finish) -> None:
        """End a request that is held, waits or runs."""
        if not self.held.abort(id):
            self.scheduler.abort(id)
        self.requests.end(id)
        self._end(id, finish)
        self._report_idle_stats()

    def _report_idle_stats(self) -> None:
        """Send statistics after a change without a step, if the engine is idle; also check for lost slots."""
        if self.scheduler.busy:
            return
        self.scheduler.check()
        self.scheduler.reset_counters()
        self.send(StepOutputs([], self._stats(0.0)))

    def _control(self, message: Control) -> Reply:
        call = self._controls.get(message.name)
        if call is None:
            return Reply(message.number, error=f"no control call named {message.name!r}", status=404)
        try:
            with panics_as_errors():
                value = call(**message.arguments)
            check_sendable(value)
            return Reply(message.number, value)
        except Exception as error:
            status = error.status if isinstance(error, RequestError) else 500
            if status == 500:
                logger.exception("control call %s failed", message.name)
            return Reply(message.number, error=str(error), status=status)

    def _all_controls(self) -> Controls:
        """Collect the control calls of engine and extensions. Raises ``ConfigError`` if two share a name."""
        own: Controls = {
            "info": self._info,
            "activity": lambda: activity(self.scheduler, self.requests, self.held.sequences()),
            "flush_cache": self._flush_cache,
            "check": self._check,
            "update_weights": self._update_weights,
        }
        owned = {name: ("the engine", call) for name, call in own.items()}
        for controls in self.extensions.service.controls:
            extension = self.extensions.service.names.of(controls)
            for name, call in controls().items():
                if name in owned:
                    owner = owned[name][0]
                    raise ConfigError(f"{owner} and {extension} both have the control call {name!r}; block one of them")
                owned[name] = (extension, call)
        return {name: call for name, (_, call) in owned.items()}

    def _info(self) -> dict[str, Any]:
        scheduler = self.scheduler
        waiting = len(scheduler.waiting) + len(self.held)
        load: dict[str, Any] = {"running": len(scheduler.running), "waiting": waiting, "paused": len(scheduler.paused)}
        changed = self.extensions.service.all_info(self._own_info)
        return {**self.info, "slots": scheduler.accounts(), **load, **changed}

    def _flush_cache(self, stored: bool = True) -> dict[str, Any]:
        """Empty the prefix cache; ``stored``: also what extensions have stored of it elsewhere."""
        done = not self.busy and self.scheduler.flush(stored=stored)
        self._report_idle_stats()
        logger.info("Cache flushed successfully!" if done else "Cache not flushed: requests are running or waiting")
        return {"success": done, "message": "Cache flushed." if done else "Requests are running or waiting."}

    def _update_weights(self, source: str, revision: str | None = None) -> dict[str, Any]:
        """Serve the weights of ``source`` from now on; prefixes cached with the old ones are dropped."""
        if self.busy:
            raise RequestError("weights can only be updated while no request is running or waiting", 409)
        self._load_weights(source, revision)
        try:
            self.scheduler.flush()
        finally:  # an extension may have failed, and the others have control calls for the new weights
            self._controls = self._all_controls()
        _collect_all()
        self._report_idle_stats()
        return {"success": True, "message": "Succeeded to update model weights."}

    def _check(self) -> dict[str, int]:
        self.scheduler.check()
        self.scheduler.cache.check()
        return self.scheduler.accounts()

    def _stats(self, seconds: float) -> StepStats:
        """Return the statistics of the step that was committed last; ``seconds`` is 0 if nothing was computed."""
        metric_counters, gauges, now = tuple[MetricCounter, ...](), tuple[MetricGauge, ...](), time.monotonic()
        # report at once when the engine becomes idle: no later step would correct the values
        if now >= self._next_metrics or not self.scheduler.busy:
            metric_counters, gauges = self._metrics.counters(), self._metrics.gauges()
            self._next_metrics = now + METRICS_PERIOD
        counters, pool = self.scheduler.counters, self.scheduler.pool
        free, cached = pool.free, self.scheduler.cache.size
        return StepStats(
            time=time.time(),
            seconds=seconds,
            prefill_sequences=counters.prefill_sequences,
            prefill_tokens=counters.prefill_tokens,
            cached_tokens=counters.cached_tokens,
            decode_sequences=counters.decode_sequences,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self.held),
            used_slots=pool.capacity - free - cached,
            cached_slots=cached,
            free_slots=free,
            capacity=pool.capacity,
            retracted=counters.retracted,
            forced_tokens=counters.forced_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            queue_seconds=tuple(counters.queue_seconds),
            counters=metric_counters,
            gauges=gauges,
        )


def _refused(error: RequestError) -> Finish:
    return Finish("error", message=str(error), status=error.status, about=error.about, field=error.field)


def _collect_all() -> None:
    """Collect all garbage, frozen objects included."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    return_freed_memory()
