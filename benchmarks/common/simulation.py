"""Serves requests with the engine's scheduler, and with predicted durations of steps instead of a model.

Everything that decides is real: the scheduler, the schedule policy, the KV slots, the prefix cache and the time of a
step, which is learned as an engine does. Tokens are constants, and time is virtual: a step takes as long as a cost
model says.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sglang_plug import Request, SamplingParams, SchedulePolicy
from sglang_plug.contracts.serving.scheduling import AccountingPolicy, PreemptivePolicy
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.caller_accounting import CallerAccounting
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.time_slices import TimeSlices
from sglang_plug_backends.step_time.extension import StepTime, work_of
from sglang_plug_backends.step_time.step_time_model import StepTimeModel

TOKEN = 1


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace."""

    time: float
    caller: str
    prompt_len: int
    output_len: int


@dataclass(slots=True)
class Served:
    """Times at which a request was served."""

    arrival: Arrival
    first_token: float | None = None
    """Time of the first token; ``None``: there was none."""
    finished: float | None = None

    @property
    def wait(self) -> float:
        """Seconds until the first token; infinite if there was none."""
        return float("inf") if self.first_token is None else self.first_token - self.arrival.time


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine that is simulated."""

    costs: StepTimeModel
    slots: int = 16384
    max_running: int = 32
    chunk_size: int = 2048
    target: float | None = None
    """Seconds of a step with prompts while sequences decode; ``None``: automatic, 0: without a limit."""
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Service:
    """Tokens that each caller was served so far: an account independent of that of the policy."""

    computed: Counter[str] = field(default_factory=Counter)
    """Input tokens, each counted once."""
    generated: Counter[str] = field(default_factory=Counter)
    _known: dict[str, int] = field(default_factory=dict)

    def count(self, chunks: Iterable[ScheduledChunk]) -> None:
        """Add the prompts of a step, before it is committed."""
        for chunk in chunks:
            sequence = chunk.sequence
            known = max(self._known.get(sequence.request.id, sequence.service.cached or 0), sequence.computed)
            end = min(chunk.end, sequence.prompt_len)
            if end > known:
                self._known[sequence.request.id] = end
                self.computed[sequence.caller] += end - known

    def weighted(self, caller: str, output_weight: float = 2.0) -> float:
        """Return the service of a caller in input tokens."""
        return self.computed[caller] + output_weight * self.generated[caller]


class Simulation:
    """One engine and its virtual clock.

    Args:
        engine: its size and costs.
        policy: a schedule policy.
    """

    def __init__(self, engine: Engine, policy: SchedulePolicy) -> None:
        self.now, self.steps, self.longest_step = 0.0, 0, 0.0
        self.service, self._costs = Service(), engine.costs
        accounting: AccountingPolicy | None = policy if hasattr(policy, "charge") else None  # type: ignore[assignment]
        preemptive: PreemptivePolicy | None = policy if hasattr(policy, "can_preempt") else None  # type: ignore[assignment]
        self.scheduler = build_scheduler(
            SlotPool(engine.slots, 1),
            RadixCache(1, LeastRecentlyUsed(), self._clock),
            CheckedPolicy(policy, type(policy).__name__),
            chunk_size=engine.chunk_size,
            max_running=engine.max_running,
            preemption=Preemption(self._clock, preemptive, extension=TimeSlices(self._clock)),
            accounting=CallerAccounting(accounting, preemptive, engine.weights),
            extensions=extension_points({"step-time": StepTime(engine.target)} if engine.target != 0 else {}),
        )

    def run(
        self,
        trace: Iterable[Arrival],
        until: float = float("inf"),
        after_step: Callable[[Simulation], None] = lambda simulation: None,
    ) -> list[Served]:
        """Serve a trace, which is sorted by time, until it ends or ``until``."""
        served = [Served(arrival) for arrival in trace]
        coming, open_requests = deque(enumerate(served)), dict[str, Served]()
        while self.now < until and (coming or self.scheduler.busy):
            if not self.scheduler.busy:
                self.now = max(self.now, coming[0][1].arrival.time)
            while coming and coming[0][1].arrival.time <= self.now:
                number, request = coming.popleft()
                open_requests[str(number)] = request
                self.scheduler.add(self._sequence(number, request.arrival))
            self._step(open_requests)
            after_step(self)
        return served

    def backlogged(self) -> set[str]:
        """Return the callers that have requests which were never admitted."""
        return {sequence.caller for sequence in self.scheduler.waiting if sequence.service.cached is None}

    def _clock(self) -> float:
        return self.now

    def _sequence(self, number: int, arrival: Arrival) -> Sequence:
        tokens = (number + 2,) * arrival.prompt_len  # no two prompts share a prefix
        params = SamplingParams(max_new_tokens=arrival.output_len, stop_token_ids=(), seed=number)
        request = Request(id=str(number), tokens=tokens, params=params, caller=arrival.caller, arrived=arrival.time)
        return Sequence.of(request, self.scheduler.pool.capacity)

    def _step(self, open_requests: dict[str, Served]) -> None:
        chunks = self.scheduler.plan()
        seconds = self._costs.step_seconds(work_of(chunks))
        self.now += seconds
        self.steps, self.longest_step = self.steps + 1, max(self.longest_step, seconds)
        has_prompts = self.scheduler.counters.prefill_sequences > 0
        self.scheduler.planning.step_budget.step_computed(chunks, seconds, has_prompts=has_prompts)
        self.service.count(chunks)
        results = [StepResult(TOKEN) if chunk.complete else StepResult() for chunk in chunks]
        for output in StepCommitter(self.scheduler).commit(chunks, results):
            request = open_requests[output.id]
            self.service.generated[request.arrival.caller] += len(output.tokens)
            if request.first_token is None:
                request.first_token = self.now
            if output.finish is not None:
                request.finished = self.now
                del open_requests[output.id]
