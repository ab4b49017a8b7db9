"""Decides which tokens of which sequences a step computes; ``commit.py`` applies the results.

There are no phases. A step hands out tokens so that every sequence's ``computed`` catches up with
``len(tokens)`` under a budget: chunked prefill, prefix hits, decoding and resuming after retraction follow one rule
(after vLLM's v1 scheduler). Ownership of KV slots: see ``sglang_plug.contracts.serving.cache``.

While a step is on the device, the next one may be planned ahead: see ``engine/execution/pipeline.py``.
"""

from __future__ import annotations

import time
from functools import partial

from sglang_plug.contracts.request import Output
from sglang_plug.contracts.serving.cache import Match
from sglang_plug.engine.extensions.request_points import RequestPoints
from sglang_plug.engine.extensions.step_points import PlanningPoints
from sglang_plug.engine.memory.kv_slots import KVAllocator
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepCounters
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.engine.sequences.step_outputs import failed_output

from .admission_rules import GrowthReserve, apply_order, prefixes_being_computed, shared_prefix_key
from .caller_accounting import SHORT_STEP_DIVISOR, CallerAccounting
from .checked_policy import CheckedPolicy
from .planned_step import PlannedStep, TokenBudget, plan_next_chunks
from .preemption import Preemption, moved_to_front

MAX_OVERLAPPED_STEPS = 8
"""Largest number of steps planned ahead before waiting sequences that found no room are considered again."""


class Scheduler:
    """Owns the queue, the running sequences and their slots.

    Args:
        allocator: gives KV slots to sequences, and takes them back.
        policy: order of admission.
        chunk_size: maximum number of new tokens in one step.
        max_running: maximum number of sequences computed together.
        never_chunks_prompts: a prompt longer than ``chunk_size`` is not split, but gets a step of its own.
        requests: the extension points of requests.
        planning: the extension points of planning.
        preemption: decides which running sequences are preempted in favour of waiting ones.
        reserve: slots kept free for the growth of running sequences.
        accounting: tells the policy what callers use, and which running prompts it orders.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        policy: CheckedPolicy,
        *,
        chunk_size: int,
        max_running: int,
        never_chunks_prompts: bool,
        requests: RequestPoints,
        planning: PlanningPoints,
        preemption: Preemption,
        reserve: GrowthReserve,
        accounting: CallerAccounting,
    ) -> None:
        self.allocator = allocator
        self.pool = allocator.pool
        self.cache = allocator.cache
        self.states = allocator.states
        self.policy = policy
        self.chunk_size = chunk_size
        self.max_running = max_running
        self.never_chunks_prompts = never_chunks_prompts
        self.requests = requests
        self.planning = planning
        self.preemption = preemption
        self.accounting = accounting
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.paused: dict[str, Sequence] = {}
        """Paused sequences by request id; they hold no slots, but their prefixes may stay in the prefix cache."""
        self.counters = StepCounters()
        self._reserve = reserve
        self._overlapped_steps_left = 0

    @property
    def busy(self) -> bool:
        """True while a sequence is waiting or running."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)
        self._overlapped_steps_left = 0
        self.accounting.queued(sequence)
        self.preemption.note_queued_or_admitted(sequence)

    def pause(self, id: str) -> None:
        """Stop scheduling a request until ``resume``; an unknown id is ignored. No step may be in flight."""
        if (sequence := self._remove(id)) is not None:
            self.paused[id] = sequence

    def resume(self, id: str) -> None:
        """Queue a paused request again, ahead of those that never ran; one that is not paused is ignored."""
        if (sequence := self.paused.pop(id, None)) is not None:
            self.preemption.note_queued_or_admitted(sequence)
            self.waiting.insert(0, sequence)
            self._overlapped_steps_left = 0

    def abort(self, id: str) -> Sequence | None:
        """Drop a paused, running or waiting request; return its sequence, or ``None`` if the id is unknown."""
        sequence = self.paused.pop(id, None) or self._remove(id)
        if sequence is not None:
            self._end_request(sequence)
        return sequence

    def _remove(self, id: str) -> Sequence | None:
        """Take a request out of the running or waiting ones; return its sequence, or ``None`` if it is not there."""
        sequence = next((candidate for candidate in self.running if candidate.request.id == id), None)
        if sequence is not None:
            self._stop_running(sequence)
            return sequence
        sequence = next((candidate for candidate in self.waiting if candidate.request.id == id), None)
        if sequence is not None:
            self.waiting.remove(sequence)
            self._overlapped_steps_left = 0
        return sequence

    def plan(self) -> list[ScheduledChunk]:
        """Plan the next step: sequences that decode first, then running prompts, then as many waiting ones as fit."""
        self.counters = StepCounters()
        self._reserve.step_planned()
        chunks, prompts, remaining = list[ScheduledChunk](), list[Sequence](), self.chunk_size
        admitted_first, budget = self._preempt(), None
        for sequence in list(self.running):
            if remaining <= 0:
                break
            if sequence.computes_prompt:  # or it was retracted for an earlier one, and has no slots
                prompts.append(sequence)
            elif self._make_room(sequence):
                count = sequence.count(sequence.computed, remaining, self.states)
                remaining -= count
                chunks.append(self._plan_chunk(sequence, count))
        if prompts or self.waiting:
            budget = TokenBudget(remaining, self.planning.step_budget.prompt_budget(chunks))
            prompts, reordered = self.accounting.split(prompts)
            self._plan_prompts(prompts, chunks, budget)
            self._admit(chunks, budget, admitted_first, [prompt for prompt in reordered if prompt.slots])
        if self.counters.retracted:
            chunks = [chunk for chunk in chunks if not chunk.dropped]
        if self.planning.plan:
            step = PlannedStep(chunks, self.pool, self.chunk_size, budget)
            for plan in self.planning.plan:
                plan(step)
        self.counters.add(chunks)
        only_decodes = not self.counters.has_prompts and not self.counters.retracted
        self._overlapped_steps_left = MAX_OVERLAPPED_STEPS if only_decodes else 0
        return chunks

    def plan_ahead(self, chunks: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Plan the step after ``chunks``, which are on the device; empty if their results must be known first.

        Every running sequence that continues gets its remaining tokens, under the same budget as in ``plan``. Nothing
        is planned ahead if the result could change the next step: if waiting sequences may find room, if slots must be
        taken from the cache or from a sequence, or if prompts or constrained outputs report log-probabilities.
        """
        chunks = [chunk for chunk in chunks if not chunk.dropped]
        continuing = [chunk for chunk in chunks if chunk.continues]
        if not continuing or len(chunks) < len(self.running) or not all(chunk.predictable for chunk in chunks):
            return []
        may_admit = len(chunks) < self.max_running and self._overlapped_steps_left <= 0
        has_room = may_admit or len(continuing) < len(chunks)
        if self.waiting and (has_room or self.preemption.prevents_overlap):
            return []
        if any(waits_for(continuing) for waits_for in self.planning.waits_for):
            return []
        step_budget, has_prompts = self.planning.step_budget, self.counters.has_prompts
        planned = plan_next_chunks(continuing, self.chunk_size, self._plan_chunk, step_budget, self.states, has_prompts)
        if sum(self.pool.missing(len(chunk.sequence.slots), chunk.end) for chunk in planned) > self.pool.free:
            return []
        for chunk in planned:
            self.pool.extend(chunk.sequence.slots, chunk.end)
        self._overlapped_steps_left -= 1
        return planned

    def start_planned_step(self, chunks: list[ScheduledChunk]) -> None:
        """Make a step that was planned ahead the current one; the previous step must be committed."""
        self.counters = StepCounters()
        self.counters.add(chunk for chunk in chunks if not chunk.dropped)
        self._reserve.step_planned()

    def _plan_prompts(self, prompts: list[Sequence], chunks: list[ScheduledChunk], budget: TokenBudget) -> None:
        """Plan tokens of running sequences whose prompts are not computed to the end."""
        for sequence in prompts:
            start = sequence.computed
            if (max_tokens := budget.tokens(start)) <= 0:
                break
            if sequence.slots and self._make_room(sequence):
                count = sequence.count(start, max_tokens, self.states)
                budget.add(start, count)
                chunks.append(self._plan_chunk(sequence, count))

    def _plan_chunk(self, sequence: Sequence, count: int, ahead: int = 0) -> ScheduledChunk:
        chunk = ScheduledChunk(sequence, count, ahead)
        self.allocator.planned(sequence, chunk.end)
        return chunk

    def _make_room(self, sequence: Sequence) -> bool:
        """Give ``sequence`` a slot for each of its tokens; evict cached prefixes first, then retract later sequences.

        Return False if ``sequence`` itself was retracted.
        """
        needed = self.pool.missing(len(sequence.slots), len(sequence.tokens))
        while not self.allocator.free_up(needed):
            victim = min(reversed(self.running), key=lambda candidate: candidate.priority)
            self._retract(victim)
            if victim is sequence:
                return False
        self.pool.extend(sequence.slots, len(sequence.tokens))
        return True

    def _retract(self, sequence: Sequence) -> None:
        """Take a running sequence's slots because others need them."""
        self.restart(sequence)
        sequence.service.retractions += 1
        self.counters.retracted += 1
        self._reserve.retracted()

    def restart(self, sequence: Sequence) -> None:
        """Move a running sequence to the head of the queue; it keeps its tokens and releases their slots.

        Its computed tokens stay in the prefix cache, so that it soon resumes where it was. A sequence whose token was
        rejected restarts too: only that removes the token from recurrent states, and from a step launched ahead.
        """
        self._stop_running(sequence)
        self.waiting.insert(0, sequence)
        self.preemption.note_queued_or_admitted(sequence)

    def _preempt(self) -> list[Sequence]:
        """Queue the preempted sequences; return the waiting ones that are admitted first."""
        if self.waiting:
            self.accounting.charge()
        if not self.waiting or not self.preemption.is_due:
            return []
        admissible = partial(apply_order, self.planning)
        room = self.max_running - len(self.running)
        preempted, admitted_first = self.preemption.preempt(self.running, self.waiting, room, admissible)
        for sequence in preempted:
            self._stop_running(sequence)
            self.waiting.append(sequence)
            self.preemption.note_queued_or_admitted(sequence)
        return admitted_first if preempted else []

    def _admit(
        self, chunks: list[ScheduledChunk], budget: TokenBudget, admitted_first: list[Sequence], prompts: list[Sequence]
    ) -> None:
        """Plan ``prompts``, running prompts, and as many waiting sequences as fit, in the order of the policy."""
        closed = bool(self.counters.retracted) or not self.waiting or len(self.running) >= self.max_running
        if (closed and not prompts) or budget.tokens(0) <= 0:
            self.preemption.lacks_slots = closed
            return
        in_progress, admitted, prompt_ids = prefixes_being_computed(self.running), set[int](), set(map(id, prompts))
        unused = max(0, budget.remaining - self.chunk_size // SHORT_STEP_DIVISOR)
        order = self.policy.order([*self.waiting, *prompts] if not closed else prompts, self.allocator.match)
        order = moved_to_front(admitted_first, order) if admitted_first else order
        for waiting in apply_order(self.planning, order, self.running, keep=prompts):
            if self.accounting.should_shorten_step(waiting):
                budget.remaining, unused = budget.remaining - unused, 0
            if (closed and not prompts) or budget.tokens(0) <= 0:
                break
            if id(waiting) in prompt_ids:
                self._plan_prompts([waiting], chunks, budget)
                continue
            if not closed and not self.allocator.restore(waiting, bool(chunks)):
                continue
            match = self.allocator.match(waiting) if not closed else None
            key = shared_prefix_key(waiting, match)
            if match is None or (key is not None and key in in_progress):
                continue  # no other sequence may run, or its prefix is being computed: wait and reuse it
            must_be_alone = self.never_chunks_prompts and len(waiting.tokens) > budget.remaining
            if (must_be_alone and chunks) or not self._try_admit(waiting, match):
                closed = True
                continue
            if key is not None:
                in_progress.add(key)
            admitted.add(id(waiting))
            start = waiting.computed
            max_tokens = len(waiting.tokens) if self.never_chunks_prompts else max(1, budget.tokens(start))
            count = waiting.count(start, max_tokens, self.states)
            budget.add(start, count)
            chunks.append(self._plan_chunk(waiting, count))
            closed = len(self.running) >= self.max_running
        if admitted:
            self.waiting = [queued for queued in self.waiting if id(queued) not in admitted]
        self.preemption.lacks_slots = bool(self.waiting) and (closed or budget.tokens(0) > 0)

    def _try_admit(self, sequence: Sequence, match: Match) -> bool:
        """Admit a waiting sequence if there is room for its tokens and for the probable growth of the running ones."""
        growth = sum(growing.limit - len(growing.tokens) for growing in (*self.running, sequence))
        if not self.allocator.allocate(sequence, match, self._reserve.tokens(growth) if self.running else 0):
            self.preemption.allocation_failed(sequence)
            return False
        if sequence.service.cached is None:
            sequence.service.cached = min(sequence.computed, sequence.prompt_len)  # forced tokens may follow the prompt
            self.accounting.admitted(sequence)
            self.counters.cached_tokens += sequence.service.cached
            self.counters.queue_seconds.append(max(0.0, time.time() - sequence.arrived))
        self.preemption.note_queued_or_admitted(sequence)
        self.running.append(sequence)
        return True

    def fail(self, sequence: Sequence, message: str, status: int = 500) -> Output:
        """End a running sequence with an error; none of its tokens is put into the prefix cache."""
        self.finish(sequence, cache_prefix=False)
        return failed_output(sequence, message, status)

    def fail_all(self, message: str) -> list[Output]:
        """End all running and waiting requests with an error, after planning that may have been cut short."""
        outputs = [self.fail(sequence, message) for sequence in [*self.running]]
        waiting, self.waiting = self.waiting, []
        ended = {output.id for output in outputs}
        for sequence in waiting:
            if sequence.request.id not in ended:  # not admitted by that planning
                self._end_request(sequence)
                outputs.append(failed_output(sequence, message))
        return outputs

    def finish(self, sequence: Sequence, cache_prefix: bool = True) -> None:
        """End the request of a running sequence; ``cache_prefix``: keep its prefix in the cache."""
        self._stop_running(sequence, cache_prefix)
        self._end_request(sequence)

    def _stop_running(self, sequence: Sequence, cache_prefix: bool = True) -> None:
        """Remove a running sequence and release its slots; ``cache_prefix``: keep its prefix in the cache."""
        self.allocator.release(sequence, cache_prefix)
        self.running.remove(sequence)
        self._overlapped_steps_left = 0

    def _end_request(self, sequence: Sequence) -> None:
        self.accounting.ended(sequence)
        self.requests.end_sequence(sequence)

    def accounts(self) -> dict[str, int]:
        """Return the slots by owner: ``free``, ``cached``, ``running`` and the ``capacity`` they add up to."""
        return self.allocator.accounts(self.running)

    def reset_counters(self) -> None:
        """Set the counters to 0, for statistics of an idle engine."""
        self.counters = StepCounters()

    def check(self) -> None:
        """Raise ``AssertionError`` if a slot was lost or is owned twice."""
        self.allocator.check(self.running)

    def flush(self, *, stored: bool = True) -> bool:
        """Empty the prefix cache; return False, without doing so, while a sequence is waiting or running."""
        if self.busy:
            return False
        self.allocator.flush(stored=stored)
        return True
