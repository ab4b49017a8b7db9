"""A pipeline with a simulated device: slots remember the tokens written to them, and tokens depend on all before
them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from typing import Any

from sglang_plug import Finish, Output, Request, SamplingParams
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.launched_step import DeferredSampling, LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.recurrent_state.state_rows import held_state
from sglang_plug_backends.recurrent_state.state_steps import StateSteps
from sglang_plug_backends.schedule.policies import FirstCome
from tests.core.engine.loop_parts import build_loop
from tests.core.engine.scheduling.scheduler_bench import STOP, SimulatedStates, next_token, with_states
from tests.core.engine.scheduling.scheduler_bench import sampled as drafted

WIDTH = 400


def constrained(tokens: tuple[int, ...], limit: int) -> StepResult:
    """Return the result of a simulated model under a grammar, which ends outputs at some tokens and forces tokens after
    others."""
    token = next_token(tokens)
    if token % 11 == 0:
        return StepResult(token, finish=Finish("stop", matched=token))
    room = limit - len(tokens) - 1
    return StepResult(token, forced=(token + 100, token + 101)[: min(room, token % 3)])


class Device:
    """A simulated device that computes steps in launch order; the host learns tokens only when it reads results.

    Keeps what each slot was written with, so that a wrong or lost slot shows.
    """

    def __init__(self) -> None:
        self.slots: dict[int, tuple[int, ...]] = {}
        self.states = SimulatedStates()
        self.steps = StateSteps(self.states)  # type: ignore[arg-type]
        self.log: list[str] = []
        self.launched_ids: list[list[str]] = []
        self.launches = 0
        self.unlaunchable = set[int]()
        """Numbers of steps that cannot be queued."""
        self.broken = set[int]()
        """Numbers of steps that fail on the device."""
        self.bad_rows = set[tuple[int, str]]()
        """Numbers of steps and ids whose logits are not finite."""
        self.while_waited: Callable[[], None] = lambda: None
        """Called while the host waits for the results of a step."""
        self._sampled: dict[int, dict[int, tuple[int, ...]]] = {}

    def launch(
        self, chunks: list[ScheduledChunk], before: LaunchedStep | None = None
    ) -> LaunchedStep | DeferredSampling:
        self.launches += 1
        number = self.launches
        assert (before is not None) == any(chunk.ahead for chunk in chunks)
        self.log.append(f"launch {number}")
        self.launched_ids.append([chunk.sequence.request.id for chunk in chunks])
        if number in self.unlaunchable:
            raise MemoryError(f"no memory for {number}")
        known = {} if before is None else self._sampled[id(before.results)]
        self.steps.begin([held for chunk in chunks if (held := held_state(chunk.sequence)) is not None])
        tokens = [self._write(chunk, known) for chunk in chunks]
        self.steps.end(chunks)
        complete = [chunk.complete for chunk in chunks]
        if before is not None and any(chunk.complete and chunk.sequence.constrained for chunk in chunks):

            def sample(committed: Ordered[ScheduledChunk]) -> LaunchedStep:
                self.log.append(f"sample {number}")
                return self._sample(number, committed, tokens, complete)

            return DeferredSampling(sample)
        return self._sample(number, chunks, tokens, complete)

    def _write(self, chunk: ScheduledChunk, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
        """Write the chunk's tokens to its slots, and check those before it; return the sequence's tokens as the device
        knows them."""
        sequence = chunk.sequence
        tokens = known[id(sequence)] if chunk.pending_on_device else tuple(sequence.tokens)
        start, end, written = chunk.start, chunk.draft_end, tokens + chunk.drafts
        assert len(sequence.slots) >= end and chunk.count > 0
        assert len(set(sequence.slots)) == len(sequence.slots)
        for position in range(start, end):
            self.slots[sequence.slots[position]] = written[: position + 1]
        for position in range(end):
            assert self.slots[sequence.slots[position]] == written[: position + 1]
        if (held := held_state(sequence)) is not None:
            self.states.compute(held, tokens, start, chunk.end)
        return tokens

    def _sample(
        self, number: int, chunks: Ordered[ScheduledChunk], tokens: list[tuple[int, ...]], complete: list[bool]
    ) -> LaunchedStep:
        tokens_of: dict[int, tuple[int, ...]] = {}
        step_results = []
        for chunk, history, is_complete in zip(chunks, tokens, complete, strict=True):
            sequence = chunk.sequence
            if not is_complete or not chunk.complete or chunk.dropped:
                step_results.append(StepResult())
                continue
            sampled = drafted(history, chunk.drafts)
            if sequence.constrained:
                assert history == tuple(sequence.tokens), "chosen before the step ahead of it is committed"
                sampled = constrained(history, sequence.limit)
            assert sampled.token is not None
            tokens_of[id(sequence)] = (*history, sampled.token)
            bad = (number, sequence.request.id) in self.bad_rows
            step_results.append(StepResult(error="not finite") if bad else sampled)

        def results() -> list[StepResult]:
            self.log.append(f"results {number}")
            self.while_waited()
            if number in self.broken:
                raise RuntimeError(f"step {number} broke")
            return step_results

        self._sampled = {id(results): tokens_of}
        return LaunchedStep([chunk.sequence for chunk in chunks if id(chunk.sequence) in tokens_of], None, results)


class QueuedInbox:
    """An inbox that a test fills; waiting for messages while it is empty is an error."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        assert self.messages or not wait or timeout, "the loop would wait for ever"
        taken, self.messages = self.messages, []
        return taken


class Bench:
    """A loop with a simulated device, its inbox and the messages that it sent."""

    def __init__(
        self,
        *,
        overlap: bool = True,
        capacity: int = 300,
        page_size: int = 1,
        cache: Any = RadixCache,
        policy: Any = FirstCome,
        **options: Any,
    ) -> None:
        self.inbox, self.device, self.sent = QueuedInbox(), Device(), list[FromEngine]()
        clock = itertools.count()
        options = with_states(options, page_size)
        self.scheduler = build_scheduler(
            SlotPool(capacity, page_size),
            cache(page_size, LeastRecentlyUsed(), lambda: float(next(clock))),
            policy(),
            **{"chunk_size": 16, "max_running": 8, **options},
        )
        self.constrained = set[str]()
        self.scheduler.add = self.add  # type: ignore[method-assign]
        self.loop = build_loop(
            self.scheduler,
            self.device,
            self.inbox,
            self.sent.append,
            info={"vocab_size": 1000, "context_length": WIDTH, "tasks": ["generate"]},
            max_queued=1000,
            overlap=overlap,
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for the scheduler; mark the ones in ``constrained``, which wait for the token before."""
        if sequence.request.id in self.constrained:
            sequence.sampling.constrained = True
        Scheduler.add(self.scheduler, sequence)

    def submit(self, id: str, tokens: Iterable[int], count: int, *, constrained: bool = False, **request: Any) -> None:
        if constrained:
            self.constrained.add(id)
        params = SamplingParams(max_new_tokens=count, stop_token_ids=request.pop("stops", ()))
        self.inbox.messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params, **request)))

    def step(self) -> None:
        self.loop.step()
        self.scheduler.check()
        free = list(self.scheduler.pool.free_slots())
        assert len(set(free)) == len(free), "a slot was freed twice"

    def finish(self, steps: int = 3000) -> None:
        while self.inbox.messages or self.scheduler.busy:
            self.step()
            steps -= 1
            assert steps, "no end"
        assert not self.loop.pipeline.in_flight
        self.scheduler.cache.check()

    def outputs(self) -> Iterable[Output]:
        for message in self.sent:
            if isinstance(message, StepOutputs):
                yield from message.outputs

    def tokens(self, id: str) -> list[int]:
        return [token for output in self.outputs() if output.id == id for token in output.tokens]

    def end(self, id: str) -> Finish:
        (finish,) = [output.finish for output in self.outputs() if output.id == id and output.finish is not None]
        return finish


def expected(tokens: list[int], limit: int, stops: Iterable[int] = ()) -> list[int]:
    out: list[int] = []
    while len(out) < limit and not set(out) & set(stops):
        out.append(next_token(tokens + out))
    return out


def follow(tokens: list[int], limit: int) -> list[StepResult]:
    """Return the results for a constrained output of at most ``limit`` tokens, step by step."""
    results: list[StepResult] = []
    known = tuple(tokens)
    while len(known) < len(tokens) + limit and not (results and results[-1].finish):
        results.append(constrained(known, len(tokens) + limit))
        assert results[-1].token is not None
        known += (results[-1].token, *results[-1].forced)
    return results


def under_grammar(tokens: list[int], limit: int) -> list[int]:
    return [token for result in follow(tokens, limit) for token in (result.token, *result.forced) if token is not None]


def prompt_that_stops(after: int) -> list[int]:
    """Return a prompt whose output has its first stop token as the last of ``after`` tokens."""
    return next(
        [number, 3]
        for number in range(1000)
        if len(out := expected([number, 3], 60, (STOP,))) == after and out[-1] == STOP
    )
