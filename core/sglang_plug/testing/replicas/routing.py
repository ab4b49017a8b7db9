"""Conformance test of routing policies: replicas that come and go, prompts of all kinds, loads, memory and time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_plug.contracts.request import Request
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.observer import StepStats
from sglang_plug.contracts.serving.routing import CacheAwareRouting, ReplicaLoad, RoutingPolicy
from sglang_plug.testing.declared import factory_of
from sglang_plug.testing.growth import check_growth
from sglang_plug.testing.memory import traced_memory

GROUPS: Sequence[Sequence[int]] = ((0, 1), (0, 1, 2, 3), (1, 4, 7), tuple(range(64)))
"""Numbers of the replicas that serve."""
ROUNDS = 40
"""Requests for each replica."""
IN_FLIGHT = 4
"""Requests of each replica that are in flight at once."""
VOCABULARY = range(50_000)
CAPACITY = 4096
"""KV slots of a replica."""
MAX_OF_EQUAL = 4.0
"""Times its equal share of unrelated requests that no replica may get."""
WARM_UP, REQUESTS = 1000, 3000
KEPT_BYTES = 100
"""Bytes that a policy may keep of each request."""
CALLERS = 12_000
KEPT_CALLER_BYTES = 60
"""Bytes that a policy may keep of each caller after so many others."""


@dataclass
class _Load:
    """A replica's load."""

    replica: int
    requests: int = 0
    tokens: int = 0
    latest: StepStats | None = None
    served: int = 0

    def facts(self) -> tuple[int, int, int, StepStats | None]:
        return self.replica, self.requests, self.tokens, self.latest


def check_routing_policy(policy: str | Callable[[], RoutingPolicy]) -> None:
    """Let a policy route requests to replicas that come, go and fail.

    It chooses one of the replicas that serve, changes none of them, and leaves none of them idle while unrelated
    requests are in flight. What it keeps does not grow with the number of requests, and its time grows at most in
    proportion to the number of replicas and to the length of a prompt.

    Args:
        policy: a factory, or the name an installed plugin declared it under.

    Raises:
        AssertionError: says what is wrong, and for which replicas.
        PluginError: no plugin, or more than one, declares the name.
    """
    make = factory_of("routing", policy, contract=RoutingPolicy)
    assert callable(getattr(make(), "choose", None)), f"{type(make()).__name__} has no method choose(request, replicas)"
    for numbers in GROUPS:
        _check_spread(make(), numbers)
    _check_changes(make())
    _check_kept(make())
    _check_kept_callers(make())
    _check_strange_tokens(make())
    for subject, prepare, sizes in (
        ("choose() among replicas", _among_replicas, (100, 400, 1600)),
        ("choose() for the tokens of a prompt", _for_prompts, (2000, 8000, 32000)),
    ):
        check_growth(lambda size, prepare=prepare: prepare(make(), size), sizes, subject)  # type: ignore[misc]


def _choose(policy: RoutingPolicy, request: Request, loads: Sequence[_Load], where: str) -> _Load:
    """Return the replica that the policy chooses, after checking the answer."""
    passed: Sequence[ReplicaLoad] = list(loads)
    before = [load.facts() for load in loads]
    try:
        number = policy.choose(request, passed)
    except Exception as error:
        raise AssertionError(f"{where}: choose() raised {type(error).__name__}: {error}") from error
    chosen = [load for load in loads if load.replica == number and type(number) is int]
    assert chosen, f"{where}: choose() returned {number!r}, which is not the number of a replica that serves"
    same = [id(load) for load in passed] == [id(load) for load in loads]
    assert same, f"{where}: choose() changed the list that it was given"
    assert [load.facts() for load in loads] == before, f"{where}: choose() changed the load of a replica"
    return chosen[0]


def _check_spread(policy: RoutingPolicy, numbers: Sequence[int]) -> None:
    """Route unrelated requests: each replica gets some, and none gets many times its share."""
    where = f"replicas {list(numbers)[:8]}{' and more' if len(numbers) > 8 else ''}, unrelated prompts"
    generator, loads = random.Random(11), [_Load(number) for number in numbers]
    total = ROUNDS * len(loads)
    in_flight: list[tuple[_Load, int]] = []
    for number in range(total):
        request = _request(generator, number)
        load = _choose(policy, request, loads, where)
        in_flight.append((load, _begin(load, request)))
        while len(in_flight) > IN_FLIGHT * len(loads):
            _end(*in_flight.pop(generator.randrange(len(in_flight))))
    idle = [load.replica for load in loads if not load.served]
    assert not idle, f"{where}: of {total} requests, replica {idle[0]} got none"
    busiest = max(loads, key=lambda load: load.served)
    assert busiest.served <= MAX_OF_EQUAL * ROUNDS, (
        f"{where}: of {total} requests, replica {busiest.replica} got {busiest.served}, and an equal share is {ROUNDS}"
    )


def _check_changes(policy: RoutingPolicy) -> None:
    """Route while replicas fail, come back and are flushed."""
    generator = random.Random(12)
    everybody = [_Load(number) for number in range(5)]
    for number in range(400):
        serving = [load for load in everybody if (number // 20 + load.replica) % 3]
        where = f"replicas that come and go, {[load.replica for load in serving]} serve"
        request = _request(generator, number % 7, shared=40)
        load = _choose(policy, request, serving, where)
        assert _choose(policy, request, serving, f"{where}, the same request again") is not None
        _end(load, _begin(load, request))
        if number % 20 == 19 and isinstance(policy, CacheAwareRouting):
            for replica in range(6):  # one of them was never chosen
                _forget(policy, replica)


def _forget(policy: CacheAwareRouting, replica: int) -> None:
    try:
        policy.forget(replica)
    except Exception as error:
        raise AssertionError(f"forget() raised {type(error).__name__}: {error}, for replica {replica}") from error


def _check_kept(policy: RoutingPolicy) -> None:
    """Memory must not grow with the number of requests."""
    generator, loads = random.Random(13), [_Load(number) for number in range(3)]
    for number in range(WARM_UP):
        _serve(policy, _request(generator, number), loads)
    with traced_memory() as allocated:
        before = allocated()
        for number in range(WARM_UP, WARM_UP + REQUESTS):
            _serve(policy, _request(generator, number), loads)
        kept = allocated() - before
    assert kept < KEPT_BYTES * REQUESTS, (
        f"{type(policy).__name__} keeps {kept // REQUESTS} bytes of each request, with replicas of {CAPACITY} KV slots"
    )


def _check_kept_callers(policy: RoutingPolicy) -> None:
    """Memory must not grow with the number of callers; a policy may remember as many as come at first."""
    loads, params = [_Load(number) for number in range(3)], SamplingParams()

    def visit(numbers: range) -> None:
        for number in numbers:
            caller, salt = f"caller {number}", f"salt {number}"
            request = Request(id=str(number), tokens=(1, 2), params=params, caller=caller, salt=salt)
            policy.choose(request, loads)

    with traced_memory() as allocated:
        visit(range(CALLERS))
        before = allocated()
        visit(range(CALLERS, 2 * CALLERS))
        kept = allocated() - before
    assert kept < KEPT_CALLER_BYTES * CALLERS, (
        f"{type(policy).__name__} keeps {kept // CALLERS} bytes of each caller after {CALLERS} others"
    )


def _check_strange_tokens(policy: RoutingPolicy) -> None:
    """Numbers that are no tokens are refused by the engine, not here."""
    loads = [_Load(number) for number in range(3)]
    for tokens in ((), (-1,) * 300, (1 << 40,) * 300):
        request = Request(id="strange", tokens=tokens)
        _choose(policy, request, loads, f"a prompt of {len(tokens)} numbers {set(tokens)}, which the engine may refuse")


def _serve(policy: RoutingPolicy, request: Request, loads: Sequence[_Load]) -> None:
    load = _choose(policy, request, loads, "many requests")
    _end(load, _begin(load, request))


def _begin(load: _Load, request: Request) -> int:
    tokens = len(request.tokens) + 16
    load.requests, load.tokens, load.served = load.requests + 1, load.tokens + tokens, load.served + 1
    return tokens


def _end(load: _Load, tokens: int) -> None:
    load.requests, load.tokens = load.requests - 1, load.tokens - tokens
    load.latest = _stats(load.replica)


def _request(generator: random.Random, number: int, shared: int = 0, tokens: int = 0) -> Request:
    """Return a request; its prompt is unlike those of other numbers, except for the first ``shared`` tokens."""
    count = tokens or generator.choice((1, 7, 64, 100, 500))
    own = random.Random(number) if shared else generator
    prompt = (*range(shared), *own.choices(VOCABULARY, k=count))
    return Request(id=f"request-{number}-é", tokens=prompt, caller=f"caller-{number % 3}", salt=str(number % 2))


def _stats(replica: int) -> StepStats:
    return StepStats(
        time=1.7e9,
        seconds=0.01,
        prefill_sequences=0,
        prefill_tokens=0,
        cached_tokens=0,
        decode_sequences=1,
        running=1,
        waiting=0,
        used_slots=100,
        cached_slots=CAPACITY - 200,
        free_slots=100,
        capacity=CAPACITY,
        retracted=0,
        replica=replica,
    )


def _among_replicas(policy: RoutingPolicy, count: int) -> Callable[[], object]:
    generator = random.Random(14)
    loads = [_Load(number, tokens=number % 17) for number in range(count)]
    requests = [_request(generator, number, tokens=100) for number in range(8)]
    return lambda: [policy.choose(request, loads) for request in requests]


def _for_prompts(policy: RoutingPolicy, count: int) -> Callable[[], object]:
    generator = random.Random(15)
    loads = [_Load(number) for number in range(4)]
    requests = [_request(generator, number, tokens=count) for number in range(8)]
    return lambda: [policy.choose(request, loads) for request in requests]
