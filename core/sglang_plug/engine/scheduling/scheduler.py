"""Decides which tokens of which sequences a step computes, and applies the results.

There are no phases. A step hands out tokens so that every sequence's ``computed`` catches up with
``len(tokens)`` under a budget: chunked prefill, prefix hits, decoding and resuming after retraction follow one rule
(after vLLM's v1 scheduler). Ownership of KV slots: see ``sglang_plug.contracts.serving.cache``.

While a step is on the device, the next one may be planned ahead: everything about it is known except the values of
the tokens. See ``engine/execution/pipeline.py``.
"""

from __future__ import annotations

import time

from sglang_plug.contracts.request import Finish, Output
from sglang_plug.contracts.serving.cache import Match, PrefixCache
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.memory.kv_allocator import KVAllocator
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.recurrent_state.state_rows import StateRows

from .checked_policy import CheckedPolicy
from .output_processing import append
from .planned_step import PlannedStep
from .scheduled_chunk import ScheduledChunk, StepCounters, StepResult
from .sequence import Sequence
from .shared_prefix import continuation, prefixes_in_work
from .sharing import Sharing, ordered, rest_of_budget
from .turns import TurnClock, with_first

RESERVE_START, RESERVE_LEAST, RESERVE_DECAY, RESERVE_RAISE = 0.5, 0.1, 0.002, 0.2
"""Fraction of the remaining output of running sequences that admission keeps free; a retraction raises it."""
AHEAD_OF_QUEUE = 8
"""Largest number of steps planned ahead before waiting sequences that found no room are considered again."""


class Scheduler:
    """Owns the queue, the running sequences and their slots.

    Args:
        pool: the free list.
        cache: the prefix cache.
        policy: order of admission.
        chunk_size: most new tokens in one step.
        max_running: most sequences computed together.
        whole: never split a prompt into chunks; one longer than ``chunk_size`` gets a step of its own.
        extensions: take part in planning and in the results of steps.
        states: owner of the recurrent states, if the model has any.
        owners: the prefix cache and its eviction policy, as error messages name them.
        turns: decides which running sequences give their places to requests that have waited for long.
        sharing: tells the policy what callers use, and which running prompts it orders.
    """

    def __init__(
        self,
        pool: SlotPool,
        cache: PrefixCache,
        policy: CheckedPolicy,
        *,
        chunk_size: int,
        max_running: int,
        whole: bool = False,
        extensions: ExtensionPoints | None = None,
        states: StateRows | None = None,
        owners: str = "the prefix cache",
        turns: TurnClock | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.allocator = KVAllocator(pool, cache, states, owners)
        self.pool, self.cache, self.policy = pool, cache, policy
        self.chunk_size, self.max_running, self.whole = chunk_size, max_running, whole
        self.extensions = extensions or ExtensionPoints()
        self.states = states
        self.turns, self.sharing = turns or TurnClock(), sharing or Sharing()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.paused: dict[str, Sequence] = {}
        """Paused sequences by request id; they hold no slots, but their prefixes may stay in the prefix cache."""
        self.counters = StepCounters()
        self._reserve = RESERVE_START
        self._ahead_left = 0

    @property
    def busy(self) -> bool:
        """True while a sequence is waiting or running."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.turns.begin(sequence)
        self.sharing.queued(sequence)
        self.waiting.append(sequence)
        self._ahead_left = 0

    def pause(self, id: str) -> None:
        """Stop scheduling a request until ``resume``; an unknown id is ignored. No step may be in flight."""
        for sequences in (self.running, self.waiting):
            for sequence in sequences:
                if sequence.request.id == id:
                    if sequences is self.running:
                        self._stop_running(sequence)
                    else:
                        sequences.remove(sequence)
                        self._ahead_left = 0
                    self.paused[id] = sequence
                    return

    def resume(self, id: str) -> None:
        """Queue a paused request again, ahead of those that never ran; one that is not paused is ignored."""
        if (sequence := self.paused.pop(id, None)) is not None:
            self.turns.begin(sequence)
            self.waiting.insert(0, sequence)
            self._ahead_left = 0

    def abort(self, id: str) -> Sequence | None:
        """Drop a paused, running or waiting request; return its sequence, or ``None`` if the id is unknown."""
        if (paused := self.paused.pop(id, None)) is not None:
            self._forget(paused)
            return paused
        for sequence in self.running:
            if sequence.request.id == id:
                self._leave(sequence)
                return sequence
        for index, sequence in enumerate(self.waiting):
            if sequence.request.id == id:
                self._forget(sequence)
                return self.waiting.pop(index)
        return None

    # -- planning -----------------------------------------------------------------------------------------------

    def plan(self) -> list[ScheduledChunk]:
        """Plan the next step: running sequences first, then as many waiting ones as fit."""
        self.counters = StepCounters()
        self._lower_reserve()
        chunks: list[ScheduledChunk] = []
        budget = self.chunk_size
        first = self._exchange_places()
        continued, prompts = self.sharing.split(self.running)
        for sequence in continued:
            if budget <= 0:
                break
            if self.counters.retracted and sequence not in self.running:  # retracted for an earlier sequence
                continue
            if not self._make_room(sequence):
                continue
            count = sequence.count(sequence.computed, budget)
            budget -= count
            chunks.append(self._plan_chunk(sequence, count))
        if self.counters.retracted:
            chunks = [chunk for chunk in chunks if chunk.sequence in self.running]
            prompts = [one for one in prompts if one in self.running]
        self._admit(chunks, budget, first, prompts)
        if self.extensions.plan:
            step = PlannedStep(chunks, self.pool, self.chunk_size)
            for plan in self.extensions.plan:
                plan(step)
        self.counters.add(chunks)
        self._ahead_left = 0 if self.counters.prefill_sequences or self.counters.retracted else AHEAD_OF_QUEUE
        return chunks

    def plan_ahead(self, chunks: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Plan the step after ``chunks``, which are on the device; empty if their results must be known first.

        Every running sequence that continues gets its remaining tokens, under the same budget as in ``plan``. Nothing
        is planned ahead if the result could change the next step: if waiting sequences may find room, if slots must be
        taken from the cache or from a sequence, or if prompts or constrained outputs report log-probabilities.
        """
        chunks = [chunk for chunk in chunks if not chunk.dropped]
        going = [chunk for chunk in chunks if chunk.continues]
        if not going or len(chunks) < len(self.running) or not all(chunk.predictable for chunk in chunks):
            return []
        if self.waiting and (len(going) < len(chunks) or (len(chunks) < self.max_running and self._ahead_left <= 0)):
            return []
        if self.waiting and self.turns.is_due:
            return []
        if any(waits_for(going) for waits_for in self.extensions.waits_for):
            return []
        planned: list[ScheduledChunk] = []
        budget = self.chunk_size
        for chunk in going:
            sequence = chunk.sequence
            count = sequence.count(chunk.end, budget, tokens=len(sequence.tokens) + chunk.complete)
            if count > 0:
                planned.append(self._plan_chunk(sequence, count, ahead=chunk.count))
                budget -= count
        needed = sum(self.pool.missing(len(chunk.sequence.slots), chunk.end) for chunk in planned)
        if needed > self.pool.free:
            return []
        for chunk in planned:
            self.pool.extend(chunk.sequence.slots, chunk.end)
        self._ahead_left -= 1
        return planned

    def begin(self, chunks: list[ScheduledChunk]) -> None:
        """Make a step that was planned ahead the current one; the previous step must be committed."""
        self.counters = StepCounters()
        self.counters.add(chunk for chunk in chunks if not chunk.dropped)
        self._lower_reserve()

    def _plan_chunk(self, sequence: Sequence, count: int, ahead: int = 0) -> ScheduledChunk:
        chunk = ScheduledChunk(sequence, count, ahead)
        self.allocator.planned(sequence, chunk.end)
        return chunk

    def _lower_reserve(self) -> None:
        self._reserve = max(RESERVE_LEAST, self._reserve - RESERVE_DECAY)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give ``sequence`` a slot for each of its tokens; evict cached prefixes first, then retract later sequences.

        Return False if ``sequence`` itself was retracted.
        """
        needed = self.pool.missing(len(sequence.slots), len(sequence.tokens))
        while not self.allocator.free_up(needed):
            victim = min(reversed(self.running), key=lambda one: one.priority)
            self._retract(victim)
            if victim is sequence:
                return False
        self.pool.extend(sequence.slots, len(sequence.tokens))
        return True

    def _retract(self, sequence: Sequence) -> None:
        """Take a running sequence's slots because others need them."""
        self._restart(sequence)
        sequence.retractions += 1
        self.counters.retracted += 1
        self._reserve = min(1.0, self._reserve + RESERVE_RAISE)

    def _restart(self, sequence: Sequence) -> None:
        """Move a running sequence to the head of the queue; it keeps its tokens and releases their slots.

        Its computed tokens stay in the prefix cache, so that it soon resumes where it was. A sequence whose token its
        grammar rejected restarts too, because only a restart removes that token from recurrent states and from a step
        that was launched ahead with it.
        """
        self._stop_running(sequence)
        self.turns.begin(sequence)
        self.waiting.insert(0, sequence)

    def _exchange_places(self) -> list[Sequence]:
        """Queue sequences that have run for long; return the requests that get their places.

        Their computed tokens stay in the prefix cache until they are evicted.
        """
        if not self.waiting or not self.turns.is_due:
            return []
        ended, late = self.turns.exchange(self.running, self.waiting, self.max_running - len(self.running))
        for sequence in ended:
            self._stop_running(sequence)
            self.turns.begin(sequence)
        self.waiting.extend(ended)
        return late if ended else []

    def _admit(self, chunks: list[ScheduledChunk], budget: int, first: list[Sequence], prompts: list[Sequence]) -> None:
        """Plan ``prompts``, which run already, and as many waiting sequences as fit, in the order of the policy."""
        closed = bool(self.counters.retracted) or not self.waiting or len(self.running) >= self.max_running
        if budget <= 0 or (closed and not prompts):
            return
        in_work, admitted, room = prefixes_in_work(self.running), set[int](), budget
        filters = self.extensions.order
        order = ordered(self.policy, self.allocator.match, self.waiting, prompts, self.running, filters)
        for waiting in with_first(first, order) if first else order:
            if budget <= 0 or (closed and not prompts):
                break
            if waiting in prompts:
                budget = rest_of_budget(budget, room - budget, self.chunk_size) if admitted else budget
                if (count := waiting.count(waiting.computed, budget) if budget > 0 else 0) > 0:
                    chunks.append(self._plan_chunk(waiting, count))
                    budget -= count
                continue
            match = self.allocator.match(waiting) if not closed else None
            key = continuation(waiting, match)
            if match is None or (key is not None and key in in_work):
                continue  # there is no place, or its prefix is being computed: wait and reuse it
            whole_next = self.whole and chunks and len(waiting.tokens) > budget
            if whole_next or not self._take(waiting, match):
                closed = True
                continue
            if key is not None:
                in_work.add(key)
            admitted.add(id(waiting))
            count = waiting.count(waiting.computed, len(waiting.tokens) if self.whole else budget)
            budget -= count
            chunks.append(self._plan_chunk(waiting, count))
            closed = len(self.running) >= self.max_running
        if admitted:
            self.waiting = [one for one in self.waiting if id(one) not in admitted]

    def _take(self, sequence: Sequence, match: Match) -> bool:
        """Admit a waiting sequence if there is room for its tokens and for the probable growth of the running ones."""
        growth = sum(one.limit - len(one.tokens) for one in self.running) + sequence.limit - len(sequence.tokens)
        if not self.allocator.begin(sequence, match, int(growth * self._reserve) if self.running else 0):
            self.turns.found_no_room()
            return False
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.counters.cached_tokens += sequence.computed
            self.counters.queue_seconds.append(max(0.0, time.time() - sequence.arrived))
        self.turns.begin(sequence)
        self.running.append(sequence)
        return True

    # -- afterwards -----------------------------------------------------------------------------------------------

    def commit(self, chunks: list[ScheduledChunk], results: list[StepResult]) -> list[Output]:
        """Advance every sequence, append sampled tokens, end finished requests; return the new outputs.

        Dropped chunks have no output.
        """
        outputs, usage = [], self.sharing.usage(chunks)
        for chunk, result in zip(chunks, results, strict=True):
            sequence = chunk.sequence
            if chunk.dropped:
                continue
            if result.error is not None:
                outputs.append(self.fail(sequence, result.error, result.status))
                continue
            prefilling = chunk.count > sequence.last_step_len
            sequence.computed += chunk.count
            sequence.prompt_logprobs.extend(result.prompt_logprobs)
            sequence.forced_logprobs.extend(result.forced_logprobs)
            self.allocator.committed(sequence, prefilling=prefilling)
            if result.values is not None:
                outputs.append(self._pooled(sequence, result.values))
                continue
            if result.rejected and result.finish is None:
                self._restart(sequence)
                continue
            if result.token is None and result.finish is None:
                continue
            outputs.append(self._append(chunk, result))
        self.sharing.charge(usage)
        return outputs

    def fail(self, sequence: Sequence, message: str, status: int = 500) -> Output:
        """End a running sequence with an error; none of its tokens is put into the prefix cache."""
        self._leave(sequence, remember=False)
        return Output(id=sequence.request.id, finish=Finish("error", message=message, status=status))

    def _pooled(self, sequence: Sequence, values: tuple[float, ...]) -> Output:
        """End a pooling task, whose prompt is complete, with its result."""
        self._leave(sequence)
        id, cached = sequence.request.id, sequence.cached or 0
        return Output(id=id, finish=Finish("stop"), cached_tokens=cached, values=values)

    def _append(self, chunk: ScheduledChunk, result: StepResult) -> Output:
        """Return the output of a complete chunk; slots of rejected drafts are freed."""
        sequence = chunk.sequence
        before = sequence.accepted
        output = append(chunk, result, self.counters)
        if chunk.drafts:
            if self.pool.shrink(sequence.slots, sequence.computed):
                sequence.slot_version += 1
            for verified in self.extensions.verified:
                verified(sequence, len(chunk.drafts), sequence.accepted - before)
        for extend in self.extensions.output:
            output = extend(sequence, output)
        if output.finish is not None:
            self._leave(sequence)
        return output

    def _leave(self, sequence: Sequence, remember: bool = True) -> None:
        """End a running sequence; ``remember``: keep its prefix in the cache."""
        self._stop_running(sequence, remember)
        self._forget(sequence)

    def _stop_running(self, sequence: Sequence, remember: bool = True) -> None:
        """Remove a running sequence and release its slots; ``remember``: keep its prefix in the cache."""
        self.running.remove(sequence)
        self._ahead_left = 0
        self.allocator.release(sequence, remember)

    def _forget(self, sequence: Sequence) -> None:
        sequence.ended = True
        self.sharing.ended(sequence)
        for finished in self.extensions.finished:
            finished(sequence)

    # -- accounts ---------------------------------------------------------------------------------------------------

    def accounts(self) -> dict[str, int]:
        """Return the slots by owner: ``free``, ``cached``, ``running`` and the ``capacity`` they add up to."""
        return self.allocator.accounts(self.running)

    def check(self) -> None:
        """Raise ``AssertionError`` if a slot was lost or is owned twice."""
        self.allocator.check(self.running)

    def flush(self) -> bool:
        """Empty the prefix cache; return False, without doing so, while a sequence is waiting or running."""
        if self.busy:
            return False
        self.allocator.flush()
        return True
