"""Simulate chat sessions on a thousand replicas with each routing policy, and measure the time of a decision.

Run as ``python -m benchmarks.cluster``. The router and the policies are the server's own. A replica is simulated: an
LRU of blocks of its prompts, running slots, a queue before them, and durations from the
coefficients of ``StepTimeModel``. Sessions belong to groups that share a system prompt; the next turn of a session
repeats everything that was said, and comes some seconds after the answer. Decisions are measured in processor time.

``--plots FOLDER`` writes a figure of the times to the first token.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common.report import parser, percentile, table, write_json
from sglang_plug import EngineClient, Output, Request, RoutingPolicy, StepStats, prefix_digests
from sglang_plug_api.benchmarking.svg import Line, plot
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from sglang_plug_api.engine_clients.replicas.replica import Replica
from sglang_plug_api.engine_clients.replicas.router import Router
from sglang_plug_backends.routing.policies import LeastTokens, RoundRobin
from sglang_plug_backends.routing.prefix_affinity import AffinitySettings, PrefixAffinity
from sglang_plug_backends.step_time.step_time_model import StepTimeModel, StepWork

BLOCK = 32
SYSTEM_PROMPT, QUESTION, ANSWER = 512, (20, 400), (20, 400)
"""Tokens of a group's system prompt, and minimum and maximum number of tokens of a question and of an answer."""
TURNS = (1, 12)
THINKING = 20.0
"""Mean seconds between an answer and the next question."""
COSTS = ((0.015, 3e-5, 1e-7), (1.0, 2e-5, 4e-10))
"""Coefficients of ``StepTimeModel``, assumed in the order of magnitude of a model of 8B on a large GPU."""
MAX_RUNNING = 64
"""Requests that a replica computes at once."""
POLICIES: Mapping[str, Callable[[], RoutingPolicy]] = {
    "round-robin": RoundRobin,
    "least-tokens": LeastTokens,
    "prefix-affinity": lambda: PrefixAffinity(AffinitySettings()),
}


class IdleClient(EngineClient):
    """A client that serves and is never called: the simulation computes nothing."""

    async def start(self) -> Mapping[str, Any]:
        """Do nothing."""
        return {}

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Raise ``NotImplementedError``."""
        raise NotImplementedError
        yield

    async def control(self, name: str, **arguments: Any) -> Any:
        """Raise ``NotImplementedError``."""
        raise NotImplementedError

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Do nothing."""

    @property
    def failure(self) -> str | None:
        """Always ``None``."""
        return None

    async def wait_failed(self) -> str:
        """Wait forever."""
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Session:
    """A conversation."""

    tokens: list[int]
    turns: int
    salt: str = ""


@dataclass(slots=True)
class Turn:
    """A request of a session."""

    session: Session
    request: Request
    answer: int
    arrived: float


@dataclass(slots=True)
class SimulatedReplica:
    """A prefix cache and a queue. It holds as many blocks as fit into ``slots``.

    Args:
        load: what the router sees.
    """

    load: Replica
    slots: int
    costs: StepTimeModel
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)
    queue: deque[Turn] = field(default_factory=deque)
    running: int = 0
    context: int = 0
    prefill_until: float = 0.0
    served_tokens: int = 0

    def cached(self, digests: Sequence[int]) -> int:
        """Return how many of the first blocks of a prompt are cached, and cache all of them."""
        known = 0
        while known < len(digests) and digests[known] in self.blocks:
            known += 1
        for digest in reversed(digests):
            self.blocks[digest] = None
            self.blocks.move_to_end(digest)
        while len(self.blocks) > self.slots // BLOCK:
            self.blocks.popitem(last=False)
        return known

    def seconds(self, turn: Turn, cached: int, now: float) -> tuple[float, float]:
        """Return the times of the first token and of the last one of a request that begins now."""
        length = len(turn.request.tokens)
        work = StepWork(decode_rows=self.running, decode_context=self.context)
        work.add_prefill(cached, max(1, length - cached))
        self.prefill_until = max(now, self.prefill_until) + self.costs.step_seconds(work)
        step = self.costs.decode_seconds(self.running, self.context)
        return self.prefill_until, self.prefill_until + step * turn.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of one policy."""

    policy: str
    replicas: int
    requests: int
    decision_p50: float
    decision_p99: float
    """99th percentile of the time that the routing policy takes for one request, in microseconds."""
    hit_rate: float
    """Share of the prompt tokens that were cached where they were computed."""
    possible: float
    """The hit rate if all replicas shared their blocks."""
    imbalance: float
    """Maximum number of tokens that one replica served, relative to the mean."""
    first_token_p50: float
    first_token_p99: float
    """Seconds from arrival to the first token."""
    waits: tuple[float, ...]


class Cluster:
    """Replicas behind a router, in virtual time.

    Args:
        policy: name of the routing policy.
        replicas: number of replicas.
        slots: KV slots of each.
    """

    def __init__(self, policy: str, replicas: int, slots: int) -> None:
        self._policy, costs = policy, StepTimeModel(*COSTS)
        self.replicas = [SimulatedReplica(Replica(number, IdleClient()), slots, costs) for number in range(replicas)]
        self._router = Router([replica.load for replica in self.replicas], CheckedRouting(POLICIES[policy](), policy))
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._everywhere: set[int] = set()
        self._decisions: list[float] = []
        self._waits: list[float] = []
        self._prompt = self._cached = self._possible = 0

    def run(self, trace: Sequence[tuple[float, Session]], seed: int) -> Outcome:
        """Serve the sessions of ``trace``, each of which begins at a time."""
        self._random = random.Random(seed)
        for at, session in trace:
            self._at(at, lambda now, session=session: self._ask(session, now))  # type: ignore[misc]
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
        served = [replica.served_tokens for replica in self.replicas]
        return Outcome(
            policy=self._policy,
            replicas=len(self.replicas),
            requests=len(self._waits),
            decision_p50=1e6 * percentile(self._decisions, 0.5),
            decision_p99=1e6 * percentile(self._decisions, 0.99),
            hit_rate=self._cached / self._prompt,
            possible=self._possible / self._prompt,
            imbalance=max(served) * len(served) / sum(served),
            first_token_p50=percentile(self._waits, 0.5),
            first_token_p99=percentile(self._waits, 0.99),
            waits=tuple(percentile(self._waits, share / 100) for share in range(1, 100)),
        )

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _ask(self, session: Session, now: float) -> None:
        """Route the next question of a session."""
        generator = self._random
        session.tokens += [generator.randrange(50_000) for _ in range(generator.randint(*QUESTION))]
        session.turns -= 1
        request = Request(id=str(len(self._decisions)), tokens=tuple(session.tokens), arrived=now)
        began = time.thread_time()
        load = self._router.choose(request)
        self._decisions.append(time.thread_time() - began)
        assert load is not None
        turn = Turn(session, request, generator.randint(*ANSWER), now)
        load.requests += 1
        load.tokens += len(request.tokens) + turn.answer
        replica = self.replicas[load.replica]
        replica.queue.append(turn)
        self._begin(replica, now)

    def _begin(self, replica: SimulatedReplica, now: float) -> None:
        """Start the waiting requests of a replica while it has running slots."""
        while replica.queue and replica.running < MAX_RUNNING:
            turn = replica.queue.popleft()
            digests = _block_digests(turn.request)
            cached = replica.cached(digests) * BLOCK
            self._prompt += len(turn.request.tokens)
            self._cached += cached
            self._possible += BLOCK * sum(digest in self._everywhere for digest in digests)
            self._everywhere.update(digests)
            replica.running += 1
            replica.context += len(turn.request.tokens)
            first, last = replica.seconds(turn, cached, now)
            self._waits.append(first - turn.arrived)
            self._at(last, lambda now, turn=turn: self._end(replica, turn, now))  # type: ignore[misc]

    def _end(self, replica: SimulatedReplica, turn: Turn, now: float) -> None:
        length, session, load = len(turn.request.tokens), turn.session, replica.load
        replica.running -= 1
        replica.context -= length
        replica.served_tokens += length + turn.answer
        load.requests -= 1
        load.tokens -= length + turn.answer
        session.tokens += [self._random.randrange(50_000) for _ in range(turn.answer)]
        replica.cached(_block_digests(Request(id="", tokens=tuple(session.tokens))))
        if session.turns:
            pause = self._random.expovariate(1 / THINKING)
            self._at(now + pause, lambda now: self._ask(session, now))
        self._begin(replica, now)


def _block_digests(request: Request) -> list[int]:
    """Return the digests of the whole blocks of a prompt."""
    return list(prefix_digests(request, range(BLOCK, len(request.tokens) + 1, BLOCK)))


def sessions(count: int, groups: int, rate: float, seed: int) -> list[tuple[float, Session]]:
    """Return ``count`` sessions that begin at random times, ``rate`` of them per second."""
    generator, now, trace = random.Random(seed), 0.0, list[tuple[float, Session]]()
    prompts = [[generator.randrange(50_000) for _ in range(SYSTEM_PROMPT)] for _ in range(groups)]
    for _ in range(count):
        now += generator.expovariate(rate)
        trace.append((now, Session(list(generator.choice(prompts)), generator.randint(*TURNS))))
    return trace


def show(outcomes: Sequence[Outcome]) -> str:
    """Return the figures as a table."""
    header = (
        "policy",
        "requests",
        "decision p50 us",
        "p99 us",
        "hit rate",
        "possible",
        "imbalance",
        "TTFT p50 s",
        "p99",
    )
    return table(
        header,
        [
            (
                outcome.policy,
                outcome.requests,
                outcome.decision_p50,
                outcome.decision_p99,
                outcome.hit_rate,
                outcome.possible,
                outcome.imbalance,
                outcome.first_token_p50,
                outcome.first_token_p99,
            )
            for outcome in outcomes
        ],
    )


def write_plot(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the figure: times to the first token."""
    lines = [
        Line(outcome.policy, [(share, max(wait, 1e-3)) for share, wait in enumerate(outcome.waits, 1)])
        for outcome in outcomes
    ]
    folder.mkdir(parents=True, exist_ok=True)
    figure = plot(lines, "percentile of requests", "seconds to the first token", log_y=True)
    (folder / "first-token.svg").write_text(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate each policy on the same sessions, and print a table."""
    options = parser(__doc__)
    options.add_argument("--replicas", type=int, default=1000)
    options.add_argument("--sessions", type=int, default=8000)
    options.add_argument("--groups", type=int, default=64)
    options.add_argument("--rate", type=float, default=math.nan, help="sessions per second; by default 0.2 per replica")
    options.add_argument("--slots", type=int, default=65536)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--plots", type=Path)
    chosen = options.parse_args(arguments)
    rate = 0.2 * chosen.replicas if math.isnan(chosen.rate) else chosen.rate
    outcomes = []
    for policy in POLICIES:
        trace = sessions(chosen.sessions, chosen.groups, rate, chosen.seed)
        outcomes.append(Cluster(policy, chosen.replicas, chosen.slots).run(trace, chosen.seed))
    print(show(outcomes))
    if chosen.plots is not None:
        write_plot(outcomes, chosen.plots)
    write_json(chosen.json, outcomes)


if __name__ == "__main__":
    main()
