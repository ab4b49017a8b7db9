"""Conformance test of step extensions: a scheduler runs with and without one, and a function is the model."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.engine.admission.open_requests import SchedulerQueueView
from sglang_plug.engine.extensions.held_sequences import HeldSequences
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence as EngineSequence
from sglang_plug.testing.memory import check_kept
from sglang_plug.testing.refusals import refusal_of
from sglang_plug.testing.scheduler_parts import REFUSED, Counter, FirstCome, Newest, NoCache, Refuses, build_scheduler
from sglang_plug.testing.service_phase import ServiceReports

from .held_requests import CheckedHolder
from .methods import check_methods
from .outputs import CheckedEnds, CheckedOutputs, raise_errors
from .preemption import CheckedPreemption
from .queueing import CheckedQueueing
from .step_budgets import CheckedStepBudget, check_prompts_advance, observe_step
from .step_inputs import (
    CheckedStates,
    RememberedTensors,
    SometimesFull,
    allocate_memory,
    check_inputs,
    check_largest_request,
    check_layout,
    check_model,
    check_stored_states,
    check_tensor_stores,
)
from .step_sampling import VOCABULARY, CheckedSampling

SLOTS = 160
CHUNK = 12
REQUESTS = 24
MAX_STEPS = 20_000
POLL = 0.002
ABORTED = 500
"""Requests by which it is measured what is kept of ended ones."""


def check_step_extension(
    extension: StepExtension,
    *,
    fields: Mapping[str, Sequence[Any]] | None = None,
    refused: Sequence[Request] = (),
    seed: int = 0,
    timeout: float = 60.0,
) -> None:
    """Check that ``extension`` keeps the contract while requests arrive, are retracted, aborted and finish.

    It inherits from each phase of which it has methods, the tokens of all outputs that it does not limit are the same
    as without it, KV slots are neither lost nor owned twice, no step of text is larger than its budget, and
    ``finished`` is called exactly once for each admitted request, also where another extension refuses it. Held
    requests are named as ready, once, and not after their end; waiting requests are not ended. Each mask allows a token
    or has an error; decisions are about constrained outputs, and forced tokens fit their limits. While nothing blocks,
    no request is said to block. Layouts cover their prompts, states of sequences are taken back, and come back from the
    host as they were, as do tensors of other extensions, the inputs of steps change nothing else of the batch, and a
    step of a sequence that was never admitted can be computed, as in the profiling run. Prompts advance while
    sequences decode, and only given sequences are preempted and admitted first. Where the extension surrounds the
    forward pass, plain graphs are not used for the step, and worker ranks are told of it. It is built for a vocabulary
    of 16 tokens, and installed in a model if it needs one; it must not refuse the requests, nor end them with errors.
    Memory does not grow with the number of requests that have ended. It is started and closed.
    Raises ``AssertionError`` that names the rule that was broken, and warns of an extension with ``HoldPhase`` that
    held no request, which leaves ``ready`` untested.

    Args:
        extension: is tested.
        fields: fields of ``Request`` that it reads, each with values that the requests have in turn. Of ``params``,
            ``max_new_tokens``, ``stop_token_ids`` and ``seed`` are replaced by those of the test.
        refused: requests that it must refuse with ``RequestError``: in ``admit``, in ``hold``, or when they are queued.
        seed: of the requests.
        timeout: seconds for which it may hold requests while nothing else happens.
    """
    check_methods(extension)
    requests = _requests(random.Random(seed), fields or {})
    expected = _Run(None, requests, timeout).outputs(aborts=())
    run = _Run(extension, requests, timeout, refused)
    aborted = {request.id for request in (*requests[::7], *requests[3::12])}
    outputs = run.outputs(aborts=aborted)
    run.warn_of_unheld()
    for id, tokens in expected.items():
        if id in run.limited:
            continue
        received = outputs.get(id, [])
        expected_tokens = tokens[: len(received)] if id in aborted | run.ended else tokens
        assert received == expected_tokens, (
            f"request {id}: the tokens are {received}, and without the extension {expected_tokens}"
        )
    for id, count in run.finished.items():
        assert count == 1, f"request {id}: finished() was called {count} times"


def _requests(generator: random.Random, fields: Mapping[str, Sequence[Any]]) -> list[Request]:
    requests = []
    for number in range(REQUESTS):
        prompt = tuple(generator.randrange(4) for _ in range(generator.randint(1, 20)))
        max_new_tokens = generator.randint(1, 40)
        own = {name: values[number % len(values)] for name, values in fields.items()}
        params = own.pop("params", SamplingParams())
        params = replace(params, max_new_tokens=max_new_tokens, stop_token_ids=(VOCABULARY - 1,), seed=number)
        requests.append(Request(id=str(number), tokens=prompt, params=params, **own))
    return requests


class _Run:
    """Serves requests in a small KV pool, so that sequences are retracted."""

    def __init__(
        self, extension: StepExtension | None, requests: list[Request], timeout: float, refused: Sequence[Request] = ()
    ) -> None:
        self.finished: dict[str, int] = {}
        tested = {} if extension is None else {"tested": extension}
        points = extension_points({**tested, "counter": Counter(self.finished), "refuses": Refuses()})
        max_running = allocate_memory(points)
        check_largest_request(points, SLOTS)
        for use_tensor_store in points.start.use_tensor_store:
            use_tensor_store(RememberedTensors())
        self._holders = [CheckedHolder(holder) for holder in points.requests.hold_phases]
        forgets = tuple(holder.forget for holder in self._holders)
        self._states = tuple(map(CheckedStates, points.cache.states))
        self._outputs = tuple(map(CheckedOutputs, points.requests.output))
        self._ends = tuple(map(CheckedEnds, points.requests.finished))
        self._points = points = replace(
            points,
            requests=replace(
                points.requests,
                hold_phases=tuple(self._holders),
                finished=(*self._ends, *forgets),
                queue_phases=tuple(map(CheckedQueueing, points.requests.queue_phases)),
                output=tuple(output.added_to for output in self._outputs),
            ),
            planning=replace(
                points.planning,
                step_budget=CheckedStepBudget(points.planning.step_budget),
                preemption=CheckedPreemption(points.planning.preemption),
            ),
            cache=replace(points.cache, states=(*self._states, SometimesFull()) if self._states else ()),
        )
        self._held, self._sampling = HeldSequences(points.requests), CheckedSampling(points.sampling)
        self._timeout, self._waited = timeout, 0.0
        self._scheduler = build_scheduler(
            SlotPool(SLOTS, 1),
            NoCache(1, Newest(), lambda: 0.0),
            CheckedPolicy(FirstCome(), "the schedule policy of the test"),
            chunk_size=CHUNK,
            max_running=6 if max_running is None else min(6, max_running),
            extensions=self._points,
            preemption=Preemption(extension=self._points.planning.preemption),
        )
        self._is_tested, self._requests, self._refused = extension is not None, requests, refused
        self._check_profiling_run()

    @property
    def limited(self) -> set[str]:
        """Ids of requests whose outputs the extension has limited."""
        return self._sampling.limited

    @property
    def ended(self) -> set[str]:
        """Ids of requests that the extension has ended with the output of a step."""
        return {id for output in self._outputs for id in output.ended}

    def warn_of_unheld(self) -> None:
        """Warn if the extension held no request, so that its method ``ready`` was not tested."""
        if self._holders and not any(holder.has_held for holder in self._holders):
            warnings.warn(
                "hold() held none of the requests, so ready() was not tested: make the extension with settings, or "
                "give fields, with which it holds some",
                stacklevel=3,
            )

    def outputs(self, aborts: Iterable[str]) -> dict[str, list[int]]:
        """Serve all requests; return the tokens of each."""
        for start in self._points.start.start:
            start()
        reports = ServiceReports(self._points.service)
        reports.check()
        try:
            outputs = self._served(set(aborts))
            reports.check()
            for request in self._refused:
                error = refusal_of(partial(self._admit, request), RequestError, f"request {request.id}")
                assert error is not None, f"request {request.id} must be refused with RequestError"
            if self._is_tested:
                check_prompts_advance(self._points.planning.step_budget)
                check_stored_states(self._points)
                check_tensor_stores(self._points, self._timeout)
                check_kept(self._serve_aborted, "the extension", warm_up=50, requests=ABORTED)
                if self._refused:
                    check_kept(self._refuse_again, "the extension, which refuses them,", warm_up=50, requests=ABORTED)
                reports.check()
            return outputs
        finally:
            for close in self._points.service.close:
                close()

    def _served(self, aborts: set[str]) -> dict[str, list[int]]:
        scheduler, outputs = self._scheduler, dict[str, list[int]]()
        waiting, steps = list(self._requests), 0
        _in_thread(self._run_watchdog)
        while steps < MAX_STEPS:
            if waiting and steps % 3 == 0:
                self._submit(waiting.pop(0))
            self._abort(aborts, outputs)
            raise_errors(self._ends)
            self._release(outputs)
            self._act_between_steps()
            if scheduler.busy:
                for output in self._step():
                    if output.finish is not None and output.finish.reason == "error":
                        raise AssertionError(f"request {output.id} was ended with an error: {output.finish.message}")
                    outputs.setdefault(output.id, []).extend(output.tokens)
            elif not waiting and not len(self._held):
                scheduler.check()
                self._check_owners()
                scheduler.flush()
                scheduler.check()
                return outputs
            elif not waiting:
                self._wait()
                continue
            steps += 1
        raise AssertionError("the requests do not end")

    def _abort(self, aborts: set[str], outputs: dict[str, list[int]]) -> None:
        """Abort requests once they have output; those of odd numbers also while they are held."""
        for id in sorted(aborts):
            if (int(id) % 2 and self._held.abort(id)) or id in outputs:
                aborts.discard(id)
                outputs.setdefault(id, [])
                self._scheduler.abort(id)

    def _release(self, outputs: dict[str, list[int]]) -> None:
        """Queue the sequences that are ready."""
        if not len(self._held):
            return
        for sequence, finish in self._held.release():
            self._waited = 0.0
            if isinstance(finish, RequestError):
                raise AssertionError(f"request {sequence.request.id} was ended with an error: {finish}")
            if finish is None:
                self._queue(sequence)
            else:
                outputs.setdefault(sequence.request.id, [])

    def _act_between_steps(self) -> None:
        for idle_timeout in self._points.service.idle_timeout:
            timeout = idle_timeout()
            assert timeout is None or timeout > 0, f"idle_timeout() must return more than 0 seconds, not {timeout}"
        for between_steps in self._points.service.between_steps:
            between_steps()
        for sequence, error in self._points.requests.end_waiting():
            id = sequence.request.id
            assert isinstance(sequence, EngineSequence), "end_waiting() must name sequences that it was given"
            is_over = self.finished.get(id) != 0
            assert sequence.was_admitted or is_over, f"request {id} was ended while it waited: {error}"

    def _queue(self, sequence: EngineSequence) -> None:
        self._scheduler.add(sequence)
        try:
            self._points.requests.sequence_queued(sequence, SchedulerQueueView(self._scheduler))
        except RequestError as error:
            raise AssertionError(f"request {sequence.request.id} was refused when it was queued: {error}") from error

    def _wait(self) -> None:
        """Give the extension time, as nothing but held requests is left."""
        ids = ", ".join(id for holder in self._holders for id in holder.ids)
        assert self._waited < self._timeout, f"requests {ids} are held and never ready"
        time.sleep(POLL)
        self._waited += POLL

    def _run_watchdog(self) -> None:
        """Call the watchdog's methods; nothing blocks."""
        for check in self._points.watchdog.check_step:
            check()
        for blocking_request in self._points.watchdog.blocking_request:
            assert blocking_request() is None, "blocking_request() names a request, and no step blocks"

    def _submit(self, request: Request) -> None:
        sequence = EngineSequence.of(request, SLOTS, constrained=self._points.requests.is_constrained(request))
        self.finished[request.id] = 0
        try:
            if sequence.constrained:
                self.limited.add(request.id)
            self._points.requests.admit_sequence(sequence)
            is_held = self._held.hold(sequence)
        except RequestError as error:
            raise AssertionError(f"a request was refused: {error}") from error
        assert isinstance(sequence.salt, str), "cache_key() must return text"
        if sequence.layout is not None:
            check_layout(sequence.layout, sequence)
        if not is_held:
            self._queue(sequence)
        self._refuse(replace(request, id=f"{REFUSED}{request.id}"))

    def _admit(self, request: Request) -> None:
        """Admit and queue a request as the engine does; end it if it is not refused."""
        sequence = EngineSequence.of(request, SLOTS)
        self._points.requests.admit_sequence(sequence)
        if self._held.hold(sequence):
            self._held.abort(request.id)
            return
        self._scheduler.add(sequence)
        try:
            self._points.requests.sequence_queued(sequence, SchedulerQueueView(self._scheduler))
        finally:
            self._scheduler.abort(request.id)

    def _refuse_again(self, number: int) -> None:
        """Submit a request that is refused."""
        request = replace(self._refused[number % len(self._refused)], id=f"again {number}")
        with suppress(RequestError):
            self._admit(request)
        self.finished.pop(request.id, None)

    def _serve_aborted(self, number: int) -> None:
        """Admit a request, and abort it before its first step."""
        request = replace(self._requests[number % len(self._requests)], id=str(len(self._requests) + number))
        self._submit(request)
        if not self._held.abort(request.id):
            self._scheduler.abort(request.id)
        for id in (request.id, f"{REFUSED}{request.id}"):  # or the test itself would keep them
            self.finished.pop(id, None)
            self.limited.discard(id)

    def _refuse(self, request: Request) -> None:
        """Let another extension refuse a request that the tested one has admitted."""
        with suppress(RequestError):
            self._points.requests.admit_sequence(EngineSequence.of(request, SLOTS))

    def _check_profiling_run(self) -> None:
        """Check that a step of a sequence that was never admitted can be computed."""
        sequence = EngineSequence.of(Request(id="profiling", tokens=(1, 2, 3)), SLOTS)
        sequence.slots.extend((1, 2, 3))
        chunks = [ScheduledChunk(sequence, 3)]
        check_inputs(self._points, chunks)
        check_model(self._points, chunks)

    def _check_owners(self) -> None:
        """Check that each running sequence has its states, and no other one."""
        running = {sequence.request.id for sequence in self._scheduler.running}
        for states in self._states:
            assert states.owners == running, f"release() was not called for {sorted(states.owners - running)}"

    def _step(self) -> list[Output]:
        chunks = self._scheduler.plan()
        width = sum(chunk.width for chunk in chunks)
        text = all(chunk.sequence.layout is None for chunk in chunks)
        assert width <= CHUNK or not text, f"a step has {width} tokens, and its budget is {CHUNK}"
        check_model(self._points, chunks)
        if chunks:
            check_inputs(self._points, chunks)
            observe_step(self._points.planning.step_budget, chunks)
        outputs = StepCommitter(self._scheduler).commit(chunks, self._sampling.results(chunks))
        self._scheduler.check()
        return outputs


def _in_thread(call: Callable[[], None]) -> None:
    """Call from another thread, and raise what it raises."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="watchdog of the test")
    thread.start()
    thread.join()
    for error in errors:
        raise error
