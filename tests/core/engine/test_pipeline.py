"""Steps that are launched while the one before is on the device: their order, and that nothing else shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Finish, LogprobOptions, Output, Request, SamplingParams
from sglang_plug.engine.launched import Launched, Postponed
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages import Abort, Control, FromEngine, News, Reply, Submit, ToEngine
from sglang_plug.engine.pipeline import FAILURES_IN_A_ROW, Pipeline
from sglang_plug.engine.scheduler import AHEAD_OF_QUEUE, Scheduler
from sglang_plug.engine.sequence import Sequence
from sglang_plug.engine.shares import Sampled, Share
from sglang_plug.engine.slots import SlotPool
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import FirstCome, Priority

STOP, VOCABULARY = 7, 50
WIDTH = 400


def next_token(tokens: Iterable[int]) -> int:
    """A model: deterministic, and different after different histories."""
    return hash(tuple(tokens)) % VOCABULARY


def constrained(tokens: tuple[int, ...], limit: int) -> Sampled:
    """A model under a grammar: some tokens end the output, after some others must follow."""
    token = next_token(tokens)
    if token % 11 == 0:
        return Sampled(token, finish=Finish("stop", matched=token))
    room = limit - len(tokens) - 1
    return Sampled(token, forced=(token + 100, token + 101)[: min(room, token % 3)])


class Device:
    """Computes in the order of launches, from what it was given then; the host sees tokens when it reads results.

    Keeps what each slot was written with, so that a wrong or lost slot shows.
    """

    def __init__(self) -> None:
        self.slots: dict[int, tuple[int, ...]] = {}
        self.log: list[str] = []
        self.asked: list[list[str]] = []
        self.launches = 0
        self.unlaunchable = set[int]()
        """Numbers of steps that cannot be queued."""
        self.broken = set[int]()
        """Numbers of steps that fail on the device."""
        self.bad_rows = set[tuple[int, str]]()
        """Numbers of steps and ids whose logits are not finite."""
        self._drawn: dict[int, dict[int, tuple[int, ...]]] = {}

    def launch(self, shares: list[Share], before: Launched | None = None) -> Launched | Postponed:
        self.launches += 1
        number = self.launches
        assert (before is not None) == any(share.ahead for share in shares)
        self.log.append(f"launch {number}")
        self.asked.append([share.sequence.request.id for share in shares])
        if number in self.unlaunchable:
            raise MemoryError(f"no memory for {number}")
        known = {} if before is None else self._drawn[id(before.results)]
        tokens = [self._write(share, known) for share in shares]
        complete = [share.complete for share in shares]
        if before is not None and any(share.complete and share.sequence.grammar is not None for share in shares):

            def choose(committed: Ordered[Share]) -> Launched:
                self.log.append(f"choose {number}")
                return self._choose(number, committed, tokens, complete)

            return Postponed(choose)
        return self._choose(number, shares, tokens, complete)

    def _write(self, share: Share, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
        """What the step does to slots; the tokens of the sequence as the device knows them."""
        one = share.sequence
        tokens = known[id(one)] if share.unseen else tuple(one.tokens)
        start, end = share.start, share.end
        assert len(one.slots) >= end and share.count > 0
        assert len(set(one.slots)) == len(one.slots)
        for position in range(start, end):
            self.slots[one.slots[position]] = tokens[: position + 1]
        for position in range(end):
            assert self.slots[one.slots[position]] == tokens[: position + 1]
        return tokens

    def _choose(
        self, number: int, shares: Ordered[Share], tokens: list[tuple[int, ...]], complete: list[bool]
    ) -> Launched:
        drawn: dict[int, tuple[int, ...]] = {}
        found = []
        for share, history, wanted in zip(shares, tokens, complete, strict=True):
            one = share.sequence
            if not wanted or not share.complete or share.dropped:
                found.append(Sampled())
                continue
            sampled = Sampled(next_token(history))
            if one.grammar is not None:
                assert history == tuple(one.tokens), "chosen before the step ahead of it is committed"
                sampled = constrained(history, one.limit)
            assert sampled.token is not None
            drawn[id(one)] = (*history, sampled.token)
            bad = (number, one.request.id) in self.bad_rows
            found.append(Sampled(error="not finite") if bad else sampled)

        def results() -> list[Sampled]:
            self.log.append(f"results {number}")
            if number in self.broken:
                raise RuntimeError(f"step {number} broke")
            return found

        self._drawn = {id(results): drawn}
        return Launched([share.sequence for share in shares if id(share.sequence) in drawn], None, results)


class Grammar:
    """Marks a sequence whose next token cannot be chosen before the host knows the last one."""

    ended = False


class Box:
    """An inbox that a test fills; asking it to wait when it is empty is an error."""

    def __init__(self) -> None:
        self.messages: list[ToEngine] = []

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        assert self.messages or not wait, "the loop would wait for ever"
        taken, self.messages = self.messages, []
        return taken


class Bench:
    """A loop with everything a test looks at."""

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
        self.box, self.device, self.sent = Box(), Device(), list[FromEngine]()
        clock = itertools.count()
        self.scheduler = Scheduler(
            SlotPool(capacity, page_size),
            cache(page_size, LeastRecentlyUsed(), lambda: float(next(clock))),
            policy(),
            **{"chunk": 16, "max_running": 8, **options},
        )
        self.constrained = set[str]()
        self.scheduler.add = self.add  # type: ignore[method-assign]
        self.loop = EngineLoop(
            self.scheduler,
            self.device,  # type: ignore[arg-type]
            self.box,
            self.sent.append,
            info={"vocab_size": 1000, "context_length": WIDTH, "tasks": ["generate"]},
            max_queued=1000,
            heartbeat=Heartbeat(),
            update_weights=lambda source, revision: None,  # type: ignore[arg-type, return-value]
            overlap=overlap,
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence for the scheduler; those in ``constrained`` get a grammar."""
        if sequence.request.id in self.constrained:
            sequence.grammar = Grammar()  # type: ignore[assignment]
        Scheduler.add(self.scheduler, sequence)

    def submit(self, id: str, tokens: Iterable[int], count: int, *, constrained: bool = False, **request: Any) -> None:
        if constrained:
            self.constrained.add(id)
        params = SamplingParams(max_new_tokens=count, stop_token_ids=request.pop("stops", ()))
        self.box.messages.append(Submit(Request(id=id, tokens=tuple(tokens), params=params, **request)))

    def step(self) -> None:
        self.loop.step()
        self.scheduler.check()
        free = list(self.scheduler.pool.free_slots())
        assert len(set(free)) == len(free), "a slot was freed twice"

    def finish(self, steps: int = 3000) -> None:
        while self.box.messages or self.scheduler.busy:
            self.step()
            steps -= 1
            assert steps, "no end"
        assert not self.loop.pipeline.in_flight
        self.scheduler.cache.check()

    def outputs(self) -> Iterable[Output]:
        for message in self.sent:
            if isinstance(message, News):
                yield from message.outputs

    def tokens(self, id: str) -> list[int]:
        return [token for output in self.outputs() if output.id == id for token in output.tokens]

    def end(self, id: str) -> Finish:
        (found,) = [one.finish for one in self.outputs() if one.id == id and one.finish is not None]
        return found


def expected(tokens: list[int], limit: int, stops: Iterable[int] = ()) -> list[int]:
    out: list[int] = []
    while len(out) < limit and not set(out) & set(stops):
        out.append(next_token(tokens + out))
    return out


def follow(tokens: list[int], limit: int) -> list[Sampled]:
    """What is sampled for a constrained output of at most ``limit`` tokens, step by step."""
    found: list[Sampled] = []
    known = tuple(tokens)
    while len(known) < len(tokens) + limit and not (found and found[-1].finish):
        found.append(constrained(known, len(tokens) + limit))
        assert found[-1].token is not None
        known += (found[-1].token, *found[-1].forced)
    return found


def under_grammar(tokens: list[int], limit: int) -> list[int]:
    return [token for one in follow(tokens, limit) for token in (one.token, *one.forced) if token is not None]


def prompt_that_stops(after: int) -> list[int]:
    """A prompt whose output has its first stop token at the end of ``after`` tokens."""
    return next(
        [number, 3]
        for number in range(1000)
        if len(out := expected([number, 3], 60, (STOP,))) == after and out[-1] == STOP
    )


def test_each_step_is_launched_before_the_one_ahead_of_it_is_read() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 4)
    bench.finish()
    assert bench.device.log == [
        *("launch 1", "launch 2", "results 1"),
        *("launch 3", "results 2", "launch 4", "results 3", "results 4"),
    ]
    assert bench.tokens("a") == expected([1, 2], 4)


def test_one_by_one_without_overlap() -> None:
    bench = Bench(overlap=False)
    bench.submit("a", [1, 2], 3)
    bench.finish()
    assert bench.device.log == [f"{what} {number}" for number in (1, 2, 3) for what in ("launch", "results")]


def test_what_ends_by_its_limit_has_no_row_ahead() -> None:
    bench = Bench()
    bench.submit("short", [1, 2], 2)
    bench.submit("long", [3, 4], 4)
    bench.finish()
    assert bench.device.asked == [["short", "long"], ["short", "long"], ["long"], ["long"]]


def test_what_a_stop_token_ends_has_a_row_that_is_dropped() -> None:
    bench = Bench()
    prompt = prompt_that_stops(3)
    bench.submit("stops", prompt, 30, stops=(STOP,))
    bench.submit("long", [3, 4], 6)
    bench.finish()
    assert [row.count("stops") for row in bench.device.asked] == [1, 1, 1, 1, 0, 0]
    assert bench.tokens("stops") == expected(prompt, 3)
    assert bench.end("stops") == Finish("stop", matched=STOP)
    news = [message for message in bench.sent if isinstance(message, News) and message.stats is not None]
    assert [one.stats.decode_sequences for one in news if one.stats] == [0, 2, 2, 1, 1, 1]


def test_a_step_that_nobody_wants_is_not_waited_for() -> None:
    bench = Bench()
    prompt = prompt_that_stops(3)
    bench.submit("stops", prompt, 30, stops=(STOP,))
    bench.finish()
    assert bench.device.log[-2:] == ["launch 4", "results 3"]
    bench.submit("next", prompt, 3)
    bench.finish()
    assert bench.tokens("next") == expected(prompt, 3)


def test_an_abort_while_a_step_is_on_the_device() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.submit("b", [3, 4], 8)
    bench.step()
    bench.step()
    bench.box.messages.append(Abort(("a",)))
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 2) and bench.end("a").reason == "abort"
    assert bench.tokens("b") == expected([3, 4], 8)


def test_an_abort_of_the_only_request_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    bench.box.messages.append(Abort(("a",)))
    bench.step()
    assert not bench.loop.pipeline.in_flight and not bench.scheduler.busy
    bench.submit("a", [1, 2], 3)
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 1) + expected([1, 2], 3)


def test_an_arrival_does_not_wait_for_a_step_that_an_abort_left_alone() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    bench.box.messages.append(Abort(("a",)))
    bench.submit("b", [3, 4], 3)
    bench.finish()
    assert bench.device.log[:5] == ["launch 1", "launch 2", "results 1", "launch 3", "launch 4"]
    assert bench.tokens("b") == expected([3, 4], 3)


def test_the_id_of_a_request_that_ended_may_be_used_at_once() -> None:
    bench = Bench()
    prompt = prompt_that_stops(2)
    bench.submit("a", prompt, 30, stops=(STOP,))
    bench.submit("b", [5], 12)
    while not any(output.id == "a" and output.finish for output in bench.outputs()):
        bench.step()
    bench.submit("a", [9, 9], 4)
    bench.finish()
    assert bench.tokens("a") == expected(prompt, 2) + expected([9, 9], 4)


@pytest.mark.parametrize("drained", [False, True])
def test_an_arrival_is_computed_in_the_step_after_the_one_on_the_device(drained: bool) -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    if drained:
        bench.box.messages.append(Control(1, "check", {}))
    bench.step()
    launches = bench.device.launches
    assert bench.loop.pipeline.in_flight
    bench.submit("b", [3, 4], 5)
    bench.step()
    assert bench.device.launches == launches, "the step after it was planned before the arrival had a chance"
    bench.step()
    assert bench.device.asked[launches] == ["a", "b"]
    bench.finish()


def test_a_full_house_does_not_stop_it() -> None:
    bench = Bench(max_running=2)
    for id in ("a", "b", "c"):
        bench.submit(id, [ord(id)], 20)
    for _ in range(5):
        bench.step()
    assert bench.device.launches == 6
    bench.finish()
    assert bench.tokens("c") == expected([ord("c")], 20)


def test_the_place_of_one_that_ends_by_its_limit_is_taken_at_once() -> None:
    bench = Bench(max_running=2)
    for id, count in (("a", 3), ("b", 20), ("c", 20)):
        bench.submit(id, [ord(id)], count)
    bench.finish()
    assert bench.device.asked[:4] == [["a", "b"], ["a", "b"], ["a", "b"], ["b", "c"]]


def test_those_that_found_no_room_are_looked_at_again() -> None:
    bench = Bench(capacity=40, cache=NoCache)
    bench.submit("a", [1] * 5, 30)
    bench.step()
    bench.submit("b", [2] * 20, 3)
    plans = 0
    plan = bench.scheduler.plan

    def counted() -> list[Share]:
        nonlocal plans
        plans += 1
        return plan()

    bench.scheduler.plan = counted  # type: ignore[method-assign]
    for _ in range(2 * AHEAD_OF_QUEUE + 4):
        bench.step()
    assert plans == 3 and bench.tokens("b") == []
    bench.finish()
    assert bench.tokens("b") == expected([2] * 20, 3)


def test_a_control_call_finds_nothing_on_the_device() -> None:
    bench = Bench()
    bench.submit("a", [1, 2], 30)
    bench.step()
    assert bench.loop.pipeline.in_flight
    bench.box.messages.append(Control(1, "check", {}))
    bench.step()
    assert bench.device.log[:4] == ["launch 1", "launch 2", "results 1", "results 2"]
    (reply,) = [message for message in bench.sent if isinstance(message, Reply)]
    place = bench.sent.index(reply)
    before = [one for message in bench.sent[:place] if isinstance(message, News) for one in message.outputs]
    assert [len(one.tokens) for one in before] == [1, 1]
    assert reply.value["running"] + reply.value["cached"] == 3
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 30)


@pytest.mark.parametrize("how", ["pooled", "constrained and reported", "prompt reported"])
def test_what_is_known_too_late_is_not_launched_ahead(how: str) -> None:
    bench = Bench()
    fields = {"task": "embed"} if how == "pooled" else {"logprobs": LogprobOptions(start=0)}
    prompt = range(20) if how == "prompt reported" else range(3)
    request = Request(id="a", tokens=tuple(prompt), params=SamplingParams(max_new_tokens=4), **fields)
    sequence = Sequence.of(request, WIDTH)
    if how == "constrained and reported":
        sequence.grammar = Grammar()  # type: ignore[assignment]
    bench.scheduler.add(sequence)
    shares = bench.scheduler.plan()
    assert bench.scheduler.plan_ahead(shares) == []


def test_constrained_tokens_are_chosen_once_those_before_are_committed() -> None:
    bench = Bench()
    prompt = next([n] for n in range(100) if all(not one.forced for one in follow([n], 4)) and len(follow([n], 4)) == 4)
    bench.submit("a", prompt, 4, constrained=True)
    bench.submit("free", [3, 4], 4)
    bench.finish()
    assert bench.device.log == [
        *("launch 1", "launch 2", "results 1", "choose 2"),
        *("launch 3", "results 2", "choose 3", "launch 4", "results 3", "choose 4", "results 4"),
    ]
    assert bench.tokens("a") == under_grammar(prompt, 4) and bench.tokens("free") == expected([3, 4], 4)


def test_what_must_follow_a_token_comes_before_what_the_step_ahead_would_choose() -> None:
    bench = Bench()
    prompt = next([n] for n in range(100) if [len(one.forced) for one in follow([n], 12)][:2] == [0, 2])
    bench.submit("a", prompt, 12, constrained=True)
    bench.submit("free", [3, 4], 12)
    bench.finish()
    assert bench.tokens("a") == under_grammar(prompt, 12)
    assert bench.tokens("free") == expected([3, 4], 12)
    assert bench.device.asked[:4] == [["a", "free"]] * 4
    assert bench.device.log[:9] == [
        *("launch 1", "launch 2", "results 1", "choose 2"),
        *("launch 3", "results 2", "choose 3", "launch 4", "results 3"),
    ]


def test_the_chunks_of_a_prompt_are_launched_ahead() -> None:
    bench = Bench(chunk=4)
    bench.submit("a", range(10), 3)
    bench.finish()
    assert bench.device.log[:6] == ["launch 1", "launch 2", "results 1", "launch 3", "results 2", "launch 4"]
    assert bench.tokens("a") == expected(list(range(10)), 3)
    news = [message for message in bench.sent if isinstance(message, News) and message.stats is not None]
    assert [one.stats.prefill_tokens for one in news if one.stats] == [4, 4, 2, 0, 0]
    assert [one.stats.decode_sequences for one in news if one.stats] == [0, 0, 0, 1, 1]


def test_chunks_leave_their_budget_to_those_that_decode() -> None:
    bench = Bench(chunk=4)
    bench.submit("a", [1, 2], 9)
    bench.step()
    bench.submit("b", range(10), 3)
    counts: list[list[int]] = []
    launch = bench.device.launch

    def watched(shares: list[Share], before: Launched | None = None) -> Launched | Postponed:
        counts.append([share.count for share in shares])
        return launch(shares, before)

    bench.device.launch = watched  # type: ignore[method-assign]
    bench.finish()
    assert counts[:5] == [[1, 3], [1, 3], [1, 3], [1, 1], [1, 1]]
    assert bench.tokens("a") == expected([1, 2], 9) and bench.tokens("b") == expected(list(range(10)), 3)


def test_a_step_without_some_of_the_running_sequences_is_followed_by_another_plan() -> None:
    bench = Bench()
    for id in ("a", "b"):
        bench.scheduler.add(Sequence.of(Request(id=id, tokens=(1, 2), params=SamplingParams()), WIDTH))
    shares = bench.scheduler.plan()
    assert bench.scheduler.plan_ahead(shares[:1]) == []
    assert len(bench.scheduler.plan_ahead(shares)) == 2


def test_nothing_is_evicted_or_retracted_ahead() -> None:
    bench = Bench(capacity=12)
    bench.submit("old", [9] * 6, 1)
    bench.finish()
    assert bench.scheduler.cache.size == 6
    bench.submit("a", [1, 2], 7)
    bench.step()
    bench.step()
    assert bench.device.launches == 1 + 3
    while bench.scheduler.pool.free:
        bench.step()
    launches, cached = bench.device.launches, bench.scheduler.cache.size
    bench.step()
    assert bench.device.launches == launches and bench.scheduler.cache.size == cached
    bench.finish()
    assert bench.tokens("a") == expected([1, 2], 7)


def test_a_step_that_breaks_on_the_device_ends_its_requests_and_the_step_ahead_with_them() -> None:
    bench = Bench()
    bench.device.broken = {2}
    bench.submit("a", [1, 2], 9)
    bench.step()
    bench.step()
    assert "step 2 broke" in bench.end("a").message and bench.tokens("a") == expected([1, 2], 1)
    assert not bench.scheduler.busy and not bench.loop.pipeline.in_flight
    bench.submit("b", [1, 2], 9)
    bench.finish()
    assert bench.tokens("b") == expected([1, 2], 9)


def test_a_step_that_cannot_be_queued_ahead_ends_its_requests_after_the_news_of_the_one_before() -> None:
    bench = Bench()
    bench.device.unlaunchable = {3}
    bench.submit("a", [1, 2], 9)
    bench.submit("two", [3, 4], 2)
    bench.step()
    bench.step()
    assert bench.tokens("a") == expected([1, 2], 2) and bench.end("two").reason == "length"
    bench.step()
    assert bench.end("a").status == 500 and "no memory for 3" in bench.end("a").message


def test_steps_that_keep_breaking_end_the_engine() -> None:
    bench = Bench()
    bench.device.broken = set(range(100))
    for number in range(FAILURES_IN_A_ROW - 1):
        bench.submit(str(number), [1, 2], 9)
        bench.step()
    bench.submit("last", [1, 2], 9)
    with pytest.raises(RuntimeError, match="broke"):
        bench.step()


def test_the_watchdog_sees_who_waits_for_results() -> None:
    bench = Bench()
    launch = bench.device.launch
    busy = []

    def watched(shares: list[Share], before: Launched | None = None) -> Launched:
        launched = launch(shares, before)

        def results() -> list[Sampled]:
            busy.append(bench.loop.heartbeat.busy_for)
            return launched.results()

        bench.device._drawn = {id(results): next(iter(bench.device._drawn.values()))}
        return replace(launched, results=results)

    bench.device.launch = watched  # type: ignore[method-assign]
    bench.submit("a", [1, 2], 4)
    bench.finish()
    assert len(busy) == 4 and min(busy) > 0 and bench.loop.heartbeat.busy_for == 0


def test_a_bad_row_ends_alone() -> None:
    bench = Bench()
    bench.device.bad_rows = {(3, "a")}
    bench.submit("a", [1, 2], 9)
    bench.submit("b", [3, 4], 9)
    bench.finish()
    assert bench.end("a").message == "not finite" and bench.tokens("a") == expected([1, 2], 2)
    assert bench.tokens("b") == expected([3, 4], 9)


def test_slots_that_the_cache_replaces_are_noticed() -> None:
    """Two prompts too short to wait for each other compute the same pages; one set is given back."""
    bench = Bench()
    bench.submit("a", [1, 2, 3, 4], 6)
    bench.submit("b", [1, 2, 3, 4], 6)
    bench.box.messages.append(Control(1, "info", {}))
    bench.step()
    first, second = bench.scheduler.running
    assert first.slots[:4] == second.slots[:4]
    assert (first.placement, second.placement) == (0, 4)
    bench.finish()
    assert bench.tokens("a") == bench.tokens("b") == expected([1, 2, 3, 4], 6)


def test_a_pipeline_without_work_does_nothing() -> None:
    bench = Bench()
    pipeline: Pipeline = bench.loop.pipeline
    assert pipeline.step() == [] and not pipeline.in_flight


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_random_traffic(data: st.DataObject) -> None:
    """Arrivals, aborts, stop tokens, limits, retractions, shared prefixes, control calls, rows that fail."""
    draw = data.draw
    overlap = draw(st.sampled_from([True, True, False]))
    bench = Bench(
        overlap=overlap,
        capacity=draw(st.integers(24, 120)),
        page_size=draw(st.sampled_from([1, 4])),
        cache=draw(st.sampled_from([RadixCache, NoCache])),
        policy=draw(st.sampled_from([FirstCome, Priority])),
        chunk=draw(st.sampled_from([4, 16, 64])),
        max_running=draw(st.integers(1, 6)),
    )
    requests: dict[str, tuple[list[int], int, tuple[int, ...]]] = {}
    aborted = set[str]()
    for number in range(draw(st.integers(1, 25))):
        match draw(st.sampled_from(["submit", "submit", "step", "steps", "abort", "control", "fail"])):
            case "submit":
                id = str(number)
                prompt = [1] * draw(st.integers(1, 12)) + [draw(st.integers(0, 2))]
                count, stops = draw(st.integers(1, 20)), draw(st.sampled_from([(), tuple(range(0, VOCABULARY, 6))]))
                bound = draw(st.integers(0, 2)) == 0
                requests[id] = prompt, count, () if bound else stops
                bench.submit(id, prompt, count, stops=stops, priority=draw(st.integers(0, 2)), constrained=bound)
            case "abort" if requests:
                id = draw(st.sampled_from(sorted(requests)))
                aborted.add(id)
                bench.box.messages.append(Abort((id,)))
            case "control":
                bench.box.messages.append(Control(number, draw(st.sampled_from(["check", "info", "flush_cache"])), {}))
            case "fail" if requests:
                id = draw(st.sampled_from(sorted(requests)))
                bench.device.bad_rows |= {(bench.device.launches + more, id) for more in range(1, 4)}
            case "step" | "steps" as how if bench.box.messages or bench.scheduler.busy:
                for _ in range(1 if how == "step" else 6):
                    if bench.box.messages or bench.scheduler.busy:
                        bench.step()
            case _:
                pass
    bench.finish()
    for id, (prompt, count, stops) in requests.items():
        limit = min(count, bench.scheduler.pool.capacity - len(prompt))
        bound = id in bench.constrained
        whole = under_grammar(prompt, limit) if bound else expected(prompt, limit, stops)
        found, end = bench.tokens(id), bench.end(id)
        if end.reason in {"abort", "error"}:
            assert (end.reason == "abort") == (end.message == "") and found == whole[: len(found)]
            assert id in aborted or end.message == "not finite"
        else:
            assert found == whole
            last = follow(prompt, limit)[-1].finish if bound else None
            stop = Finish("stop", matched=whole[-1]) if whole[-1] in stops else Finish("length")
            assert end == (last or stop)
    bench.scheduler.flush()
    assert bench.scheduler.accounts()["free"] == bench.scheduler.pool.capacity
