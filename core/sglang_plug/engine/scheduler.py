"""Decides who computes what in a step, and what became of it.

There are no phases. A step hands out tokens so that every sequence's ``computed`` catches up with
``len(tokens)`` under a budget: chunked prefill, prefix hits, decoding and resuming after retraction are one rule
(after vLLM's v1 scheduler). Ownership of KV slots: see ``sglang_plug.cache``.

While a step is on the device, the one after it may be planned ahead: everything about it is known but the values of
the tokens. See ``pipeline.py``.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

from sglang_plug.cache import Match, PrefixCache
from sglang_plug.policy import SchedulePolicy
from sglang_plug.request import Finish, Output

from .holdings import Holdings
from .outcome import append
from .sequence import Sequence
from .shares import Sampled, Share, Tally
from .slots import SlotPool
from .speculation import Speculation
from .states import StateRows

SHARED_RUN = 32
"""A waiting sequence that continues with the same tokens as one being computed waits for its prefix."""
RESERVE_START, RESERVE_LEAST, RESERVE_DECAY, RESERVE_RAISE = 0.5, 0.1, 0.002, 0.2
"""Share of the remaining output of running sequences that admission keeps free; raised by a retraction."""
AHEAD_OF_QUEUE = 8
"""Most steps that are planned ahead before sequences that found no room are looked at again."""


class Scheduler:
    """Owns the queue, the running sequences and their slots.

    Args:
        pool: the free list.
        cache: the prefix cache.
        policy: order of admission.
        chunk: most new tokens in one step.
        max_running: most sequences computed together.
        whole: never cut a prompt into chunks; one longer than ``chunk`` gets a step of its own.
        speculation: adds drafts to what is planned.
        states: who has the recurrent states, if the model has any.
    """

    def __init__(
        self,
        pool: SlotPool,
        cache: PrefixCache,
        policy: SchedulePolicy,
        *,
        chunk: int,
        max_running: int,
        whole: bool = False,
        speculation: Speculation | None = None,
        states: StateRows | None = None,
    ) -> None:
        self.holdings = Holdings(pool, cache, states)
        self.pool, self.cache, self.policy = pool, cache, policy
        self.chunk, self.max_running, self.whole = chunk, max_running, whole
        self.speculation, self.states = speculation, states
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.tally = Tally()
        self._reserve = RESERVE_START
        self._ahead_left = 0

    @property
    def busy(self) -> bool:
        """True while there is anything to do."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)
        self._ahead_left = 0

    def abort(self, id: str) -> Sequence | None:
        """Drop a request wherever it is; returns it if it was there."""
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

    def plan(self) -> list[Share]:
        """The next step: running sequences first, then as many waiting ones as fit."""
        self.tally = Tally()
        self._lower_reserve()
        shares: list[Share] = []
        budget = self.chunk
        for sequence in list(self.running):
            if budget <= 0:
                break
            if self.tally.retracted and sequence not in self.running:  # made room for one before it
                continue
            if not self._make_room(sequence):
                continue
            count = sequence.count(sequence.computed, budget)
            budget -= count
            shares.append(self._share(sequence, count))
        if self.tally.retracted:
            shares = [share for share in shares if share.sequence in self.running]
        else:
            self._admit(shares, budget)
        if self.speculation is not None:
            shares = self.speculation.draft(shares, self.pool, self.chunk)
        self._count(shares)
        self._ahead_left = 0 if self.tally.prefill_sequences or self.tally.retracted else AHEAD_OF_QUEUE
        return shares

    def plan_ahead(self, shares: list[Share]) -> list[Share]:
        """The step after ``shares``, which is on the device; empty if what comes of that must be known first.

        Every running sequence that goes on gets what it has left then, under the same budget as in ``plan``. That is
        not done where the next step could be another one: with sequences waiting that may find room, or when slots must
        be taken from the cache or from a sequence; nor with prompts or constraints that report log-probabilities.
        """
        shares = [share for share in shares if not share.dropped]
        going = [share for share in shares if share.goes_on]
        if not going or len(shares) < len(self.running) or not all(share.predictable for share in shares):
            return []
        if self.waiting and (len(going) < len(shares) or (len(shares) < self.max_running and self._ahead_left <= 0)):
            return []
        if self.speculation is not None and self.speculation.foresees(going):
            return []
        planned: list[Share] = []
        budget = self.chunk
        for share in going:
            sequence = share.sequence
            count = sequence.count(share.end, budget, tokens=len(sequence.tokens) + share.complete)
            if count > 0:
                planned.append(self._share(sequence, count, ahead=share.count))
                budget -= count
        needed = sum(self.pool.missing(len(share.sequence.slots), share.end) for share in planned)
        if needed > self.pool.free:
            return []
        for share in planned:
            self.pool.extend(share.sequence.slots, share.end)
        self._ahead_left -= 1
        return planned

    def begin(self, shares: list[Share]) -> None:
        """A step that was planned ahead is now the current one: the step before is committed."""
        self.tally = Tally()
        self._count([share for share in shares if not share.dropped])
        self._lower_reserve()

    def _share(self, sequence: Sequence, count: int, ahead: int = 0) -> Share:
        share = Share(sequence, count, ahead)
        self.holdings.planned(sequence, share.end)
        return share

    def _count(self, shares: list[Share]) -> None:
        """Let the tally know of what a step computes."""
        for share in shares:
            if share.count <= share.sequence.latest:
                self.tally.decode_sequences += 1
            else:
                self.tally.prefill_sequences += 1
                self.tally.prefill_tokens += share.count

    def _lower_reserve(self) -> None:
        self._reserve = max(RESERVE_LEAST, self._reserve - RESERVE_DECAY)

    def _make_room(self, sequence: Sequence) -> bool:
        """Give ``sequence`` a slot for each of its tokens, at the cost of cached runs, then of later sequences."""
        needed = self.pool.missing(len(sequence.slots), len(sequence.tokens))
        while not self.holdings.free_up(needed):
            victim = min(reversed(self.running), key=lambda one: one.priority)
            self._retract(victim)
            if victim is sequence:
                return False
        self.pool.extend(sequence.slots, len(sequence.tokens))
        return True

    def _retract(self, sequence: Sequence) -> None:
        """Take a running sequence's slots; it keeps its tokens and starts over at the head of the queue."""
        self.running.remove(sequence)
        self._ahead_left = 0
        self.holdings.release(sequence)
        sequence.retractions += 1
        self.waiting.insert(0, sequence)
        self.tally.retracted += 1
        self._reserve = min(1.0, self._reserve + RESERVE_RAISE)

    def _admit(self, shares: list[Share], budget: int) -> None:
        if not self.waiting or budget <= 0 or len(self.running) >= self.max_running:
            return
        prefilling = (one for one in self.running if len(one.tokens) - one.computed > max(1, one.latest))
        in_work = {key for one in prefilling if (key := self._continuation(one, one.match))}
        admitted = set[int]()
        for waiting in self.policy.order(self.waiting, self.holdings.match):
            assert isinstance(waiting, Sequence)
            if budget <= 0 or len(self.running) >= self.max_running:
                break
            match = self.holdings.match(waiting)
            key = self._continuation(waiting, match)
            if key is not None and key in in_work:
                continue  # its prefix is being computed: reuse it once it is there
            if self.whole and shares and len(waiting.tokens) > budget:
                break
            if not self._take(waiting, match):
                break
            if key is not None:
                in_work.add(key)
            admitted.add(id(waiting))
            count = waiting.count(waiting.computed, len(waiting.tokens) if self.whole else budget)
            budget -= count
            shares.append(self._share(waiting, count))
        if admitted:
            self.waiting = [one for one in self.waiting if id(one) not in admitted]

    @staticmethod
    def _continuation(sequence: Sequence, match: Match | None) -> Hashable:
        """Names the prefix that ``sequence`` computes next, or ``None`` if that is short or not shared."""
        start = len(match.slots) if match is not None else 0
        if match is None or match.node is None or sequence.reusable - start < SHARED_RUN:
            return None
        return match.node, tuple(sequence.keys(start, start + SHARED_RUN))

    def _take(self, sequence: Sequence, match: Match) -> bool:
        """Admit a waiting sequence if its tokens fit, and what the running ones will probably need."""
        growth = sum(one.limit - len(one.tokens) for one in self.running) + sequence.limit - len(sequence.tokens)
        if not self.holdings.begin(sequence, match, int(growth * self._reserve) if self.running else 0):
            return False
        if sequence.cached is None:
            sequence.cached = sequence.computed
            self.tally.cached_tokens += sequence.computed
            self.tally.queue_seconds.append(max(0.0, time.time() - sequence.arrived))
        self.running.append(sequence)
        return True

    # -- afterwards -----------------------------------------------------------------------------------------------

    def commit(self, shares: list[Share], results: list[Sampled]) -> list[Output]:
        """Advance every share, append sampled tokens, end what is finished; returns the news.

        Shares that are dropped have none.
        """
        outputs = []
        for share, result in zip(shares, results, strict=True):
            sequence = share.sequence
            if share.dropped:
                continue
            if result.error is not None:
                outputs.append(self.fail(sequence, result.error, result.status))
                continue
            prefilling = share.count > sequence.latest
            sequence.computed += share.count
            sequence.prompt_logprobs.extend(result.prompt_logprobs)
            sequence.forced_logprobs.extend(result.forced_logprobs)
            self.holdings.committed(sequence, prefilling=prefilling)
            if result.values is not None:
                outputs.append(self._pooled(sequence, result.values))
                continue
            if result.token is None:
                continue
            outputs.append(self._append(share, result))
        return outputs

    def fail(self, sequence: Sequence, message: str, status: int = 500) -> Output:
        """End a running sequence with an error; nothing of it is remembered."""
        self._leave(sequence, remember=False)
        return Output(id=sequence.request.id, finish=Finish("error", message=message, status=status))

    def _pooled(self, sequence: Sequence, values: tuple[float, ...]) -> Output:
        """A pooling task is over with its prompt."""
        self._leave(sequence)
        id, cached = sequence.request.id, sequence.cached or 0
        return Output(id=id, finish=Finish("stop"), cached_tokens=cached, values=values)

    def _append(self, share: Share, result: Sampled) -> Output:
        """Tell what came of a complete share; slots of drafts that did not come true go back."""
        sequence = share.sequence
        before = sequence.accepted
        output = append(share, result, self.tally)
        if share.drafts:
            if self.pool.shrink(sequence.slots, sequence.computed):
                sequence.placement += 1
            if self.speculation is not None:
                self.speculation.fared(sequence, len(share.drafts), sequence.accepted - before)
        if output.finish is not None:
            self._leave(sequence)
        return output

    def _leave(self, sequence: Sequence, remember: bool = True) -> None:
        """A running sequence is over."""
        self.running.remove(sequence)
        self._ahead_left = 0
        self.holdings.release(sequence, remember)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        if self.speculation is not None:
            self.speculation.end(sequence)

    # -- accounts ---------------------------------------------------------------------------------------------------

    def accounts(self) -> dict[str, int]:
        """Slots by owner: ``free``, ``cached``, ``running`` and the ``capacity`` they add up to."""
        return self.holdings.accounts(self.running)

    def check(self) -> None:
        """Raise ``AssertionError`` if a slot was lost or is owned twice."""
        self.holdings.check(self.running)

    def flush(self) -> bool:
        """Empty the prefix cache; refused (False) while there is anything to do."""
        if self.busy:
            return False
        self.holdings.flush()
        return True
