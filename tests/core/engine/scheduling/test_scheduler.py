"""The scheduler alone, driven by a function instead of a model."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import LogprobOptions, Request, SamplingParams, TokenLogprob
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.multimodal.layout import MediaLayout
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import DepthFirst, FirstCome, LongestPrefix, Priority

from .scheduler_bench import STOP, Device, expected, finish, make, next_token, room, step, submit


def test_decoding_prefill_and_chunks_are_one_rule() -> None:
    scheduler, device = make(chunk_size=16), Device()
    prompts = {"a": [1] * 40, "b": [2, 3], "c": [5] * 17}
    for id, tokens in prompts.items():
        submit(scheduler, id, tokens)
    assert finish(scheduler, device) == {id: expected(tokens) for id, tokens in prompts.items()}


def test_a_shared_prefix_is_computed_once_even_when_all_arrive_together() -> None:
    scheduler, device = make(chunk_size=512, capacity=4000, max_running=16), Device()
    shared = list(range(100, 228))
    for index in range(8):
        submit(scheduler, str(index), [*shared, 300 + index, 1, 2, 3])
    finish(scheduler, device)
    assert device.computed == len(shared) + 8 * 4 + 8 * 5 - 8 - sum(
        5 - len(expected([*shared, 300 + index, 1, 2, 3])) for index in range(8)
    )


def test_salts_do_not_share() -> None:
    scheduler, device = make(capacity=4000, chunk_size=512), Device()
    submit(scheduler, "a", [9] * 50, salt="x", params={"max_new_tokens": 1})
    finish(scheduler, device)
    submit(scheduler, "b", [9] * 50, salt="y", params={"max_new_tokens": 1})
    finish(scheduler, device)
    assert device.computed == 100


def test_a_cached_prompt_computes_its_last_token_only() -> None:
    scheduler, device = make(), Device()
    for id in ("a", "b"):
        submit(scheduler, id, [4] * 30, params={"max_new_tokens": 1})
        finish(scheduler, device)
    assert device.computed == 31


def test_prompt_logprobs_are_not_taken_from_the_cache() -> None:
    scheduler, device = make(), Device()
    submit(scheduler, "a", [4] * 30, params={"max_new_tokens": 1})
    finish(scheduler, device)
    submit(scheduler, "b", [4] * 30, params={"max_new_tokens": 1}, logprobs=LogprobOptions(start=10))
    chunks = scheduler.plan()
    assert chunks[0].sequence.computed == 9
    logprobs = tuple(TokenLogprob(4, 0.0) for _ in range(10, 25))
    StepCommitter(scheduler).commit(chunks, [StepResult(prompt_logprobs=logprobs[:15])])
    assert chunks[0].sequence.reusable == 24


def test_zero_new_tokens_caches_the_prompt() -> None:
    scheduler, device = make(), Device()
    submit(scheduler, "a", [4] * 30, params={"max_new_tokens": 0})
    assert finish(scheduler, device) == {"a": []}
    assert scheduler.cache.size == 30


def test_the_pool_is_retracted_from_and_the_output_stays_the_same() -> None:
    tight, wide = make(capacity=60), make(capacity=4000)
    for scheduler in (tight, wide):
        for index in range(6):
            submit(scheduler, str(index), [index] * 10, params={"max_new_tokens": 40})
    devices = Device(), Device()
    retracted = 0
    tokens: dict[str, list[int]] = {}
    while tight.busy:
        for output in step(tight, devices[0]):
            tokens.setdefault(output.id, []).extend(output.tokens)
        retracted += tight.counters.retracted
    assert retracted > 0
    assert tokens == finish(wide, devices[1])


def test_the_highest_priority_is_retracted_last() -> None:
    scheduler, device = make(capacity=48, policy=Priority), Device()
    for index in range(3):
        submit(scheduler, str(index), [index] * 10, priority=index, params={"max_new_tokens": 30, "stop_token_ids": ()})
    first: list[str] = []
    while scheduler.busy:
        before = {sequence.request.id for sequence in scheduler.running}
        highest = max(before, default="2")
        for output in step(scheduler, device):
            if output.finish is not None:
                first.append(output.id)
        assert highest in {sequence.request.id for sequence in scheduler.running} | set(first)
    assert first == ["2", "1", "0"]


def test_abort_frees_everything_at_any_point() -> None:
    scheduler, device = make(chunk_size=8), Device()
    for index in range(4):
        submit(scheduler, str(index), [index] * 20)
    step(scheduler, device)
    for id in ("0", "1", "2", "3", "unknown"):
        scheduler.abort(id)
        scheduler.check()
    assert not scheduler.busy
    scheduler.flush()
    assert scheduler.accounts()["free"] == scheduler.pool.capacity


def test_an_error_is_not_remembered() -> None:
    scheduler = make()
    submit(scheduler, "a", [1] * 10)
    outputs = StepCommitter(scheduler).commit(scheduler.plan(), [StepResult(error="bad")])
    assert outputs[0].finish is not None and outputs[0].finish.reason == "error"
    assert scheduler.cache.size == 0 and not scheduler.busy


@pytest.mark.parametrize("policy", [FirstCome, LongestPrefix, Priority, DepthFirst])
@pytest.mark.parametrize("cache", [RadixCache, NoCache])
def test_every_policy_serves_everything(policy: type, cache: type) -> None:
    scheduler, device = make(capacity=100, policy=policy, cache=cache), Device()
    prompts = {str(i): [i % 3] * (5 + i % 7) + [i] for i in range(20)}
    for id, tokens in prompts.items():
        submit(scheduler, id, tokens, arrived=float(id))
    assert finish(scheduler, device) == {id: expected(tokens) for id, tokens in prompts.items()}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_traffic(data: st.DataObject) -> None:
    """For any mix of arrivals, aborts and sizes, outputs are right, no slot is lost, and all requests finish."""
    draw = data.draw
    page_size = draw(st.sampled_from([1, 2, 4]))
    scheduler = make(
        capacity=draw(st.integers(40, 120)),
        page_size=page_size,
        cache=draw(st.sampled_from([RadixCache, NoCache])),
        policy=draw(st.sampled_from([FirstCome, LongestPrefix, Priority, DepthFirst])),
        chunk_size=draw(st.sampled_from([3, 16, 64])),
        max_running=draw(st.integers(1, 6)),
        states=draw(st.sampled_from([None, 1, 3, 20])),
    )
    device, alive, prompts, tokens = Device(), set[str](), dict[str, list[int]](), dict[str, list[int]]()
    stems = [[1] * 36, [1] * 10 + [2] * 10, [3]]
    for turn in range(draw(st.integers(1, 25))):
        if draw(st.booleans()):
            id = str(turn)
            stem = draw(st.sampled_from(stems))[: draw(st.integers(1, 36))]
            prompts[id] = stem + draw(st.lists(st.integers(0, 3), max_size=3))
            submit(scheduler, id, prompts[id], priority=draw(st.integers(0, 2)), arrived=float(turn))
            alive.add(id)
        if alive and draw(st.integers(0, 9)) == 0:
            gone = draw(st.sampled_from(sorted(alive)))
            scheduler.abort(gone)
            alive.discard(gone)
        if scheduler.busy:
            for output in step(scheduler, device):
                tokens.setdefault(output.id, []).extend(output.tokens)
                if output.finish is not None:
                    alive.discard(output.id)
                    assert tokens[output.id] == expected(prompts[output.id], room(scheduler, prompts[output.id]))
    later = finish(scheduler, device)
    for id in alive:
        assert tokens.get(id, []) + later.get(id, []) == expected(prompts[id], room(scheduler, prompts[id]))
    scheduler.flush()
    assert scheduler.accounts()["free"] == scheduler.pool.capacity


class Forcing(Device):
    """A device that forces some tokens, which equal the tokens that it would sample, so that outputs do not change."""

    def run(self, chunks: list[ScheduledChunk]) -> list[StepResult]:
        results = super().run(chunks)
        return [self._forced(chunk, result) for chunk, result in zip(chunks, results, strict=True)]

    def _forced(self, chunk: ScheduledChunk, result: StepResult) -> StepResult:
        sequence = chunk.sequence
        emitted_len = sequence.output.emitted_len + len(sequence.output.forced_logprobs)
        known = sequence.tokens[emitted_len : sequence.computed + chunk.count + 1]
        assert not known or sequence.computed < emitted_len, "the step does not compute what predicts a forced token"
        logprobs = tuple(TokenLogprob(token, 0.0) for token in known) if sequence.request.logprobs is not None else ()
        if result.token is None:
            return replace(result, forced_logprobs=logprobs)
        tokens = [*sequence.tokens, result.token]
        count = hash(tuple(tokens)) // 50 % 4
        room = sequence.limit - len(tokens) - (sequence.request.logprobs is not None)
        while count > 0 and room > 0 and STOP not in tokens[-1:] and (token := next_token(tokens)) != STOP:
            tokens.append(token)
            count, room = count - 1, room - 1
        logprob = None if sequence.request.logprobs is None else TokenLogprob(result.token, 0.0)
        forced = tuple(tokens[len(sequence.tokens) + 1 :])
        return replace(result, forced=forced, forced_logprobs=logprobs, logprob=logprob)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_forced_tokens_in_random_traffic(data: st.DataObject) -> None:
    """Forced tokens change neither outputs nor log-probabilities in chunks, after retractions and with shared
    prefixes."""
    draw = data.draw
    scheduler = make(
        capacity=draw(st.integers(50, 150)),
        page_size=draw(st.sampled_from([1, 4])),
        cache=draw(st.sampled_from([RadixCache, NoCache])),
        chunk_size=draw(st.sampled_from([2, 5, 64])),
        max_running=draw(st.integers(1, 6)),
        states=draw(st.sampled_from([None, 2, 20])),
    )
    device, prompts = Forcing(), dict[str, list[int]]()
    limit = draw(st.integers(1, 12))
    for index in range(draw(st.integers(1, 8))):
        prompts[str(index)] = [1] * draw(st.integers(1, 30)) + [draw(st.integers(0, 2))]
        logprobs = draw(st.sampled_from([None, LogprobOptions()]))
        submit(scheduler, str(index), prompts[str(index)], logprobs=logprobs, params={"max_new_tokens": limit})
    tokens: dict[str, list[int]] = {}
    reported: dict[str, list[int]] = {}
    while scheduler.busy:
        wants = {
            sequence.request.id
            for sequence in (*scheduler.waiting, *scheduler.running)
            if sequence.request.logprobs is not None
        }
        for output in step(scheduler, device):
            tokens.setdefault(output.id, []).extend(output.tokens)
            if output.id in wants:
                reported.setdefault(output.id, []).extend(entry.token for entry in output.logprobs)
    for id, prompt in prompts.items():
        assert tokens[id] == expected(prompt, min(limit, scheduler.pool.capacity - len(prompt)))
        assert reported.get(id, tokens[id]) == tokens[id]
    scheduler.cache.check()


def test_forced_tokens_are_steps_less() -> None:
    scheduler, device = make(), Forcing()
    submit(scheduler, "a", [3] * 20, params={"max_new_tokens": 40, "stop_token_ids": ()})
    steps = forced = 0
    while scheduler.busy:
        step(scheduler, device)
        steps += 1
        forced += scheduler.counters.forced_tokens
        assert steps <= 2 or (scheduler.counters.prefill_sequences, scheduler.counters.decode_sequences) == (0, 1)
    assert forced > 10 and steps == 2 + 39 - forced


@pytest.mark.parametrize(
    ("logprobs", "known", "reusable"), [(None, 0, 5), (-1, 0, 3), (-1, 1, 4), (-1, 2, 5), (1, 0, 0)]
)
def test_what_predicts_a_forced_token_is_computed_if_its_log_probability_is_wanted(
    logprobs: int | None, known: int, reusable: int
) -> None:
    options = None if logprobs is None else LogprobOptions(start=logprobs)
    sequence = Sequence.of(Request(id="a", tokens=(1, 2, 3), logprobs=options), 50)
    sequence.tokens += [4, 5, 6]
    sequence.output.emitted_len = 4
    sequence.output.forced_logprobs += [TokenLogprob(5 + index, 0.0) for index in range(known)]
    assert sequence.reusable == reusable


def test_the_time_in_the_queue_is_told_when_a_request_begins_and_not_again() -> None:
    scheduler, device, began = make(max_running=1), Device(), time.time()
    submit(scheduler, "a", [1] * 40, arrived=began - 1000.0)
    submit(scheduler, "b", [2], arrived=began + 1000.0)  # the clock was set back since its arrival
    queue_seconds = []
    while scheduler.busy:
        step(scheduler, device)
        queue_seconds.append(scheduler.counters.queue_seconds)
    first = queue_seconds[0]
    assert len(first) == 1 and 1000.0 <= first[0] <= 1000.0 + time.time() - began
    assert [times for times in queue_seconds if times] == [first, [0.0]]


def submit_images(scheduler: Scheduler, id: str, tokens: list[int], *images: range, **options: Any) -> Sequence:
    """Submit a request with images that must not be divided between steps; return its sequence."""
    submit(scheduler, id, tokens, **options)
    sequence = scheduler.waiting[-1]
    sequence.layout = MediaLayout(list(tokens), whole=images)
    return sequence


@pytest.mark.parametrize("page_size", [1, 4])
def test_images_that_see_each_other_are_computed_in_one_step(page_size: int) -> None:
    scheduler, device = make(page_size=page_size, chunk_size=8), Device()
    prompt = list(range(100, 150))
    sequence = submit_images(scheduler, "a", prompt, range(5, 15), range(20, 23), range(26, 48))
    ends = []
    while sequence.computed < len(prompt):
        chunks = scheduler.plan()
        ahead = scheduler.plan_ahead(chunks)
        outputs = StepCommitter(scheduler).commit(chunks, device.run(chunks))
        ends.append(sequence.computed)
        if ahead:
            assert [chunk.committed.count for chunk in ahead] == [sequence.count(sequence.computed, 8)]
    assert ends == [15, 23, 48, 50]
    finish(scheduler, device)
    assert len(outputs) == 1


@pytest.mark.parametrize("page_size", [1, 4])
def test_no_prefix_ends_within_an_image_that_sees_all_of_itself(page_size: int) -> None:
    scheduler, device = make(page_size=page_size, chunk_size=64), Device()
    image = range(5, 15)
    first = list(range(100, 130))
    for id, prompt, reused in (
        ("cold", first, 0),
        ("same text after the image", [*first[:20], 7, 8], 20),
        ("another image from its middle on", [*first[:10], *range(200, 212)], 5 // page_size * page_size),
        ("the prompt ends with the image", first[:15], 5 // page_size * page_size),
    ):
        sequence = submit_images(scheduler, id, prompt, image)
        finish(scheduler, device)
        assert sequence.service.cached == reused, id


def test_one_image_longer_than_a_step_makes_room_for_itself() -> None:
    scheduler, device = make(chunk_size=4), Device()
    submit_images(scheduler, "a", list(range(100, 140)), range(2, 38))
    submit(scheduler, "b", list(range(200, 210)))
    chunks = scheduler.plan()
    assert [chunk.count for chunk in chunks] == [38]
    StepCommitter(scheduler).commit(chunks, device.run(chunks))
    finished = finish_unbounded(scheduler, device)
    assert finished["b"] == expected(list(range(200, 210)))


def finish_unbounded(scheduler: Scheduler, device: Device) -> dict[str, list[int]]:
    """Do the same as ``finish``, for steps that may exceed the chunk size."""
    tokens: dict[str, list[int]] = {}
    while scheduler.busy:
        chunks = scheduler.plan()
        for output in StepCommitter(scheduler).commit(chunks, device.run(chunks)):
            tokens.setdefault(output.id, []).extend(output.tokens)
        scheduler.check()
    return tokens


def test_a_request_that_waits_for_long_hits_its_prefix_once() -> None:
    scheduler, device = make(policy=LongestPrefix, max_running=1), Device()
    submit(scheduler, "first", [1, 2, 3, 4], params={"max_new_tokens": 1})
    finish(scheduler, device)
    submit(scheduler, "long", [9, 8], params={"max_new_tokens": 40})
    step(scheduler, device)
    submit(scheduler, "waits", [1, 2, 3, 4, 5])
    finish(scheduler, device)
    hits = {run.tokens: run.hits for run in scheduler.cache.outline(9) if run.parent is None}
    assert hits[4] == 1


def test_forced_tokens_from_the_prefix_cache_are_no_cached_prompt_tokens() -> None:
    """An extension that holds a request may force the beginning of its output before the request is queued."""
    scheduler, device = make(), Device()
    for id in ("computes", "reuses"):
        sequence = Sequence.of(Request(id=id, tokens=(1, 2, 3), params=SamplingParams(max_new_tokens=9)), 20)
        sequence.tokens += [4, 5, 6, 7]
        scheduler.add(sequence)
        (output,) = step(scheduler, device)
        cached_tokens = scheduler.counters.cached_tokens
        finish(scheduler, device)
    assert device.computed < 2 * (3 + 9)
    assert output.cached_tokens == cached_tokens == 3
