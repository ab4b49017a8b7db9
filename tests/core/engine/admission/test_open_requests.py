"""The unfinished requests of an engine, and the checks before a further request is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import LogprobOptions, Request, RequestError, SamplingParams
from sglang_plug.engine.admission.open_requests import OpenRequests, RequestChecks, SchedulerQueueView, check_token_ids
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import LongestPrefix
from tests.core.engine.scheduling.scheduler_bench import make, submit

INFO: Mapping[str, Any] = {"tasks": ("generate", "embed"), "context_length": 10, "vocab_size": 50}


def request(id: str = "a", tokens: tuple[int, ...] = (1, 2), **fields: Any) -> Request:
    return Request(id=id, tokens=tokens, params=SamplingParams(**fields.pop("params", {})), **fields)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y", "z"]))))
def test_counts_are_those_of_the_open_requests(steps: list[tuple[str, str]]) -> None:
    requests, callers = OpenRequests(), dict[str, str]()
    for id, caller in steps:
        if id in requests:
            requests.end(id)
            del callers[id]
        else:
            requests.end(id)  # has ended already
            requests.add(Sequence.of(request(id, caller=caller), 100))
            callers[id] = caller
        assert {id for id in "abcdef" if id in requests} == callers.keys()
        assert dict(requests.by_caller()) == {who: [*callers.values()].count(who) for who in callers.values()}


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": (0, 50)},
        {"tokens": (-1,)},
        {"params": {"stop_token_ids": (50,)}},
        {"params": {"logit_bias": {-1: 1.0}}},
        {"logprobs": LogprobOptions(ids=(50,))},
    ],
)
def test_ids_outside_of_the_vocabulary_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="is not in the vocabulary of 50 tokens"):
        check_token_ids(request(**fields), 50)


def test_all_ids_of_the_vocabulary_are_accepted() -> None:
    params = {"stop_token_ids": (49,), "logit_bias": {0: 1.0}}
    check_token_ids(request(tokens=(0, 49), params=params, logprobs=LogprobOptions(ids=(0, 49))), 50)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": ()}, "the prompt has no tokens"),
        ({"task": "rerank"}, "does not support the task rerank; its tasks: generate, embed"),
        ({"tokens": (1,) * 10}, r"The input \(10 tokens\) is longer than the model's context length \(10 tokens\)"),
        ({"tokens": (1,) * 9}, None),
        ({"tokens": (1,) * 10, "task": "embed"}, None),
        ({"tokens": (1,) * 11, "task": "embed"}, "longer than the model's context length"),
    ],
)
def test_prompts_that_the_model_cannot_take_are_refused(fields: dict[str, Any], message: str | None) -> None:
    checks, candidate = RequestChecks(INFO, longest=100, max_queued=1), request(**fields)
    if message is None:
        checks.check(candidate, OpenRequests(), make(), held=0)
        return
    with pytest.raises(RequestError, match=message):
        checks.check(candidate, OpenRequests(), make(), held=0)


def test_a_prompt_that_does_not_fit_the_pool_is_refused() -> None:
    with pytest.raises(RequestError, match=r"The input \(9 tokens\) does not fit the KV pool \(9 tokens\)"):
        RequestChecks(INFO, longest=9, max_queued=1).check(request(tokens=(1,) * 9), OpenRequests(), make(), held=0)


def test_an_id_may_be_open_once() -> None:
    requests = OpenRequests()
    requests.add(Sequence.of(request("a"), 100))
    with pytest.raises(RequestError, match="Duplicate request ID: 'a' is still being served"):
        RequestChecks(INFO, longest=100, max_queued=9).check(request("a"), requests, make(), held=0)


@pytest.mark.parametrize(("held", "is_full"), [(0, False), (1, False), (2, True)])
def test_the_queue_is_full_when_all_places_are_taken(held: int, is_full: bool) -> None:
    scheduler, checks = make(max_running=2), RequestChecks(INFO, longest=100, max_queued=3)
    for id in "abc":  # two will run and one waits; two more may wait
        submit(scheduler, id, [1, 2])
    scheduler.plan()
    if not is_full:
        checks.check(request("new"), OpenRequests(), scheduler, held=held)
        return
    with pytest.raises(RequestError, match=r"The request queue is full \(3 waiting\)") as caught:
        checks.check(request("new"), OpenRequests(), scheduler, held=held)
    assert caught.value.status == 503


class CountingCache(RadixCache):
    """A prefix cache that counts its lookups."""

    lookups = 0

    def find(self, keys: Ordered[int], *arguments: Any) -> Any:
        self.lookups += 1
        return super().find(keys, *arguments)


def test_arrivals_between_two_steps_look_up_each_prefix_once() -> None:
    cache = CountingCache(1, LeastRecentlyUsed(), lambda: 0.0)
    policy = CheckedPolicy(LongestPrefix(), "longest prefix first")
    scheduler = build_scheduler(SlotPool(64, 1), cache, policy, chunk_size=32, max_running=2)
    queue = SchedulerQueueView(scheduler)
    for number in range(40):
        arriving = Sequence.of(Request(id=str(number), tokens=(number, 1, 2), arrived=float(number)), 9)
        scheduler.add(arriving)
        assert len(list(queue.ahead_of(arriving))) == number
    assert cache.lookups == 40
    queue.forget_matches()
    assert len(list(queue.ahead_of(arriving))) == 39 and cache.lookups == 80
