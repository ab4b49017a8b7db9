"""Drafts are planned and committed without a change of outputs, with a function in place of the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Output
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.speculation.extension import Speculation
from tests.core.engine.execution.pipeline_bench import Bench
from tests.core.engine.execution.pipeline_bench import expected as piped
from tests.core.engine.sampling.sampling_cases import processors
from tests.core.engine.scheduling.scheduler_bench import (
    STOP,
    VOCABULARY,
    Device,
    expected,
    finish,
    make,
    next_token,
    sampled,
    step,
    submit,
)

from .drafting_bench import GuessingDrafter, guess_with_errors, speculate, use_extension

LONG = {"max_new_tokens": 24, "stop_token_ids": ()}


def perfect(tokens: list[int], max_draft_tokens: int) -> Sequence[int]:
    drafts: list[int] = []
    for _ in range(max_draft_tokens):
        drafts.append(next_token(tokens + drafts))
    return drafts


def wrong(tokens: list[int], max_draft_tokens: int) -> Sequence[int]:
    return [(token + 1) % VOCABULARY for token in perfect(tokens, max_draft_tokens)]


def steps_of(scheduler: Scheduler, device: Device) -> list[list[Output]]:
    outputs = []
    while scheduler.busy:
        outputs.append(step(scheduler, device))
    return outputs


def test_drafts_that_come_true_are_tokens_of_one_step() -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3], params=LONG)
    lengths = [len(output.tokens) for outputs in steps_of(scheduler, device) for output in outputs]
    assert lengths == [1, 3, 5, 5, 5, 5]  # two drafts, then four, and one of the last step's comes from no draft
    assert drafter.limits == [2, 4, 4, 4, 4]


def test_an_output_says_what_was_drafted_for_it() -> None:
    scheduler, device = make(capacity=400), Device()
    speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3], params={**LONG, "max_new_tokens": 9})
    outputs = [output for outputs in steps_of(scheduler, device) for output in outputs]
    counts = [output.drafts for output in outputs]
    assert counts[0] is None
    assert [(drafts.drafted, drafts.accepted) for drafts in counts[1:] if drafts is not None] == [(2, 2), (6, 6)]


def max_output(scheduler: Scheduler, tokens: list[int]) -> int:
    """Return the number of tokens for which the pool has room after a prompt."""
    return scheduler.pool.capacity - len(tokens)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_outputs_are_the_same_whatever_is_drafted(data: st.DataObject) -> None:
    page = data.draw(st.sampled_from([1, 4]), "page")
    cache = data.draw(st.sampled_from([RadixCache, NoCache]), "cache")
    scheduler = make(
        data.draw(st.integers(15, 60), "pages") * page, page, cache, chunk_size=data.draw(st.integers(1, 30))
    )
    fraction, seed = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]), "wrong"), data.draw(st.integers(0, 99), "seed")
    drafter = speculate(
        scheduler,
        guess_with_errors(next_token, fraction, seed, VOCABULARY),
        max_draft_tokens=data.draw(st.integers(1, 9), "max_draft_tokens"),
        step_tokens=data.draw(st.integers(1, 40), "step tokens"),
    )
    device, limit = Device(), data.draw(st.integers(1, 12), "limit")
    prompts = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=10), min_size=1, max_size=6))
    for number, tokens in enumerate(prompts):
        submit(scheduler, str(number), tokens, params={"max_new_tokens": limit})
    aborted = data.draw(st.sets(st.integers(0, len(prompts) - 1), max_size=1), "aborted")
    generated: dict[str, list[int]] = {}
    for _ in range(data.draw(st.integers(0, 6), "before") if aborted else 0):
        if scheduler.busy:
            for output in step(scheduler, device):
                generated.setdefault(output.id, []).extend(output.tokens)
    for number in aborted:
        scheduler.abort(str(number))
    for id, tokens in finish(scheduler, device).items():
        generated.setdefault(id, []).extend(tokens)
    for number, tokens in enumerate(prompts):
        actual, reference = generated.get(str(number), []), expected(tokens, min(limit, max_output(scheduler, tokens)))
        assert actual == (reference[: len(actual)] if number in aborted else reference)
    assert scheduler.accounts()["running"] == 0
    assert len(drafter.ended) == len(drafter.salts)
    for ended in drafter.ended:
        assert any(ended == [*tokens, *expected(tokens, limit)][: len(ended)] for tokens in prompts)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_pipeline_says_the_same_whatever_is_drafted(data: st.DataObject) -> None:
    bench = Bench(overlap=data.draw(st.booleans()), capacity=data.draw(st.integers(60, 300)), chunk_size=16)
    fraction = data.draw(st.sampled_from([0.0, 0.3, 1.0]), "wrong")
    speculate(
        bench.scheduler,
        guess_with_errors(next_token, fraction, data.draw(st.integers(0, 99)), VOCABULARY),
        step_tokens=data.draw(st.integers(2, 20)),
    )
    prompts: dict[str, tuple[list[int], int]] = {}
    for number in range(data.draw(st.integers(1, 8))):
        prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))
        prompts[str(number)] = prompt, data.draw(st.integers(1, 30))
        bench.submit(str(number), prompt, prompts[str(number)][1], stops=(STOP,))
        for _ in range(data.draw(st.integers(0, 5))):
            if bench.inbox.messages or bench.scheduler.busy:
                bench.step()
    bench.finish()
    for id, (prompt, count) in prompts.items():
        assert bench.tokens(id) == piped(prompt, count, (STOP,))


def test_tokens_after_a_stop_token_are_not_told() -> None:
    prompt = next([number] for number in range(999) if 4 <= len(expected([number], 20)) <= 6)
    scheduler, device = make(capacity=400), Device()
    speculate(scheduler, perfect, max_draft_tokens=9)
    submit(scheduler, "a", prompt, params={"max_new_tokens": 20})
    assert finish(scheduler, device)["a"] == expected(prompt, 20)


def test_rejected_positions_are_neither_cached_nor_kept() -> None:
    scheduler, device = make(capacity=400), Device()
    speculate(scheduler, wrong)
    submit(scheduler, "a", [1, 2, 3], params=LONG)
    step(scheduler, device)
    before = scheduler.accounts()
    step(scheduler, device)
    assert scheduler.counters.drafted_tokens == 2 and scheduler.counters.accepted_tokens == 0
    assert scheduler.accounts()["running"] == before["running"] + 1
    finish(scheduler, device)
    assert scheduler.cache.size == 3 + 23, "the last token is never computed"
    match = scheduler.cache.match([1, 2, 3, *expected_long()], "", 0)
    assert len(match.slots) == 26


def expected_long() -> list[int]:
    tokens: list[int] = []
    while len(tokens) < 24:
        tokens.append(next_token([1, 2, 3, *tokens]))
    return tokens


def drafted(scheduler: Scheduler, device: Device) -> list[int]:
    """Run all requests to their end; return the total number of drafted tokens after each step."""
    counts = []
    while scheduler.busy:
        step(scheduler, device)
        counts.append(scheduler.counters.drafted_tokens)
    return counts


def test_a_sequence_whose_drafts_fail_rests_for_longer_and_longer() -> None:
    scheduler, device = make(capacity=400), Device()
    speculate(scheduler, wrong)
    submit(scheduler, "a", [1, 2, 3], params={**LONG, "max_new_tokens": 60})
    tried = [index for index, count in enumerate(drafted(scheduler, device)) if count]
    gaps = [after - before for before, after in zip(tried, tried[1:], strict=False)]
    assert gaps == [3, 5, 9, 17]


def test_a_step_has_no_more_tokens_than_can_pay() -> None:
    scheduler, device = make(capacity=400, chunk_size=64), Device()
    speculate(scheduler, perfect, step_tokens=8)
    for number in range(6):
        submit(scheduler, str(number), [number, 9], params=LONG)
    step(scheduler, device)
    step(scheduler, device)
    assert scheduler.counters.drafted_tokens == 2
    for number in range(6, 8):
        submit(scheduler, str(number), [number, 9], params=LONG)
    step(scheduler, device)
    step(scheduler, device)
    assert scheduler.counters.decode_sequences == 8 and scheduler.counters.drafted_tokens == 0


def test_room_is_shared_fairly() -> None:
    scheduler, device = make(capacity=400, chunk_size=64), Device()
    speculate(scheduler, perfect, max_draft_tokens=8, step_tokens=12)
    for number in range(2):
        submit(scheduler, str(number), [number, 9], params={**LONG, "max_new_tokens": 60})
    for _ in range(4):
        step(scheduler, device)
    assert [len(chunk.drafts) for chunk in scheduler.plan()] == [5, 5]


def test_without_free_slots_there_are_no_drafts() -> None:
    scheduler, device = make(capacity=12, cache=NoCache), Device()
    speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3, 4, 5], params={**LONG, "max_new_tokens": 7})
    step(scheduler, device)
    scheduler.pool.extend(taken := scheduler.running[0].slots[:0], 5)
    assert scheduler.pool.free == 2
    (chunk,) = scheduler.plan()
    assert chunk.drafts == ()
    StepCommitter(scheduler).commit([chunk], device.run([chunk]))
    scheduler.pool.release(taken)
    assert len(scheduler.plan()[0].drafts) == 2


@pytest.mark.parametrize(
    "params",
    [{"frequency_penalty": 0.5}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.5}],
    ids=lambda params: next(iter(params)),
)
def test_penalised_outputs_have_no_drafts(params: dict[str, float]) -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3], params={**LONG, **params})
    (sequence,) = scheduler.waiting
    sequence.sampling.processors = processors(VOCABULARY).admit(sequence.request)
    assert set(drafted(scheduler, device)) == {0} and not drafter.limits


def raises(tokens: list[int], max_draft_tokens: int) -> Sequence[int]:
    raise LookupError("no idea")


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


def panics(tokens: list[int], max_draft_tokens: int) -> Sequence[int]:
    raise Panic("index out of bounds")


@pytest.mark.parametrize(
    ("guess", "problem"),
    [
        (raises, "no idea"),
        (panics, "Panic: index out of bounds"),
        (lambda tokens, limit: [1] * (limit + 1), "3 tokens where at most 2 were asked for"),
        (lambda tokens, limit: [1000], "1000, which is no token of a vocabulary of 1000"),
        (lambda tokens, limit: [-1], "-1, which is no token"),
        (lambda tokens, limit: ["1"], "'1', which is no token"),
        (lambda tokens, limit: None, "NoneType"),
    ],
)
def test_a_drafter_that_breaks_its_contract_is_not_asked_again(
    guess: object, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, guess)  # type: ignore[arg-type]
    for id in ("a", "b"):
        submit(scheduler, id, [1, 2, 3], params=LONG)
    with caplog.at_level(logging.ERROR):
        assert finish(scheduler, device) == {"a": expected_long(), "b": expected_long()}
    assert len(drafter.limits) == 1
    (record,) = caplog.records
    assert problem in record.message and "Speculative decoding is disabled" in record.message


def test_a_drafter_that_fails_at_an_end_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Forgetful(GuessingDrafter):
        def begin(self, prompt: Sequence[int], *, salt: str) -> None:  # type: ignore[override]
            return None

    scheduler, device = make(capacity=400), Device()
    options = {
        "name": "the drafter",
        "max_draft_tokens": 4,
        "step_tokens": 1,
        "vocabulary": 1000,
    }  # too few tokens for any draft
    use_extension(scheduler, Speculation(Forgetful(perfect), **options))  # type: ignore[arg-type]
    submit(scheduler, "a", [1, 2, 3], params=LONG)
    assert finish(scheduler, device)["a"] == expected_long()
    assert "begin() returned NoneType, not a SequenceDrafter" in caplog.text


def test_every_output_is_told_to_the_drafter_when_it_is_over() -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, perfect, step_tokens=1)
    submit(scheduler, "a", [1, 2, 3], params=LONG, salt="tenant")
    finish(scheduler, device)
    assert drafter.limits == [] and drafter.salts == ["tenant"]
    assert drafter.ended == [[1, 2, 3, *expected_long()]]


def test_a_step_that_may_be_drafted_for_is_waited_for() -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3], params=LONG)
    step(scheduler, device)
    drafter.guess = lambda tokens, limit: ()
    chunks = scheduler.plan()
    assert scheduler.plan_ahead(chunks), "nothing will be drafted: the next step is queued"


def test_a_guess_that_a_step_was_waited_for_in_vain_is_a_miss() -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, lambda tokens, limit: ())
    submit(scheduler, "a", [1, 2, 3], params={**LONG, "max_new_tokens": 60})
    step(scheduler, device)
    chunks = scheduler.plan()
    drafter.guess = wrong
    assert scheduler.plan_ahead(chunks) == []
    StepCommitter(scheduler).commit(chunks, device.run(chunks))
    chunks = scheduler.plan()
    assert chunks[0].drafts == ()
    assert len(scheduler.plan_ahead(chunks)) == 1, "it rests"
    output = StepCommitter(scheduler).commit(chunks, device.run(chunks))[0]
    assert output.drafts is None, "no draft was verified"


def test_a_step_with_drafts_is_not_followed_before_it_is_known() -> None:
    scheduler, device = make(capacity=400), Device()
    drafter = speculate(scheduler, perfect)
    submit(scheduler, "a", [1, 2, 3], params=LONG)
    step(scheduler, device)
    chunks = scheduler.plan()
    assert chunks[0].drafts
    drafter.guess = lambda tokens, limit: ()
    assert scheduler.plan_ahead(chunks) == []


def test_a_chunk_counts_its_drafts_apart() -> None:
    scheduler = make()
    submit(scheduler, "a", [1, 2, 3])
    chunk = ScheduledChunk(scheduler.waiting[0], 3, drafts=(4, 5))
    assert (chunk.count, chunk.width, chunk.end, chunk.draft_end, list(chunk.positions)) == (
        3,
        5,
        3,
        5,
        [0, 1, 2, 3, 4],
    )
    assert chunk.complete and not chunk.pending_on_device


def test_what_follows_a_draft_that_is_wrong_is_not_sampled() -> None:
    first = next_token((1, 2))
    assert [token for token, _ in sampled((1, 2), (first, VOCABULARY)).accepted_tokens] == [next_token((1, 2, first))]
