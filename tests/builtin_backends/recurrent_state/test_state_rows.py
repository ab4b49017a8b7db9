"""Recurrent states: their owners, the prefixes for which they are cached, and their reuse."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.recurrent_state.state_rows import StateRows
from tests.core.engine.execution.pipeline_bench import Bench, prompt_that_stops
from tests.core.engine.execution.pipeline_bench import expected as piped
from tests.core.engine.scheduling.scheduler_bench import STOP, Device, expected, finish, make, step, submit


def serve(scheduler: Scheduler, device: Device, id: str, tokens: list[int], **options: Any) -> int:
    """Serve one request; return the number of tokens that were computed for it."""
    before = device.computed
    submit(scheduler, id, tokens, **options)
    assert finish(scheduler, device)[id] == expected(tokens, options.get("params", {}).get("max_new_tokens", 5))
    return device.computed - before


def accounts(scheduler: Scheduler) -> dict[str, int]:
    (rows,) = scheduler.states
    assert isinstance(rows, StateRows)
    return rows.accounts()


def test_a_prompt_that_comes_again_goes_on_from_a_state_near_its_end() -> None:
    scheduler, device = make(capacity=4000, states=8), Device()
    prompt, once = [5] * 30, {"max_new_tokens": 1}
    assert serve(scheduler, device, "a", prompt, params=once) == 30
    assert serve(scheduler, device, "b", prompt, params=once) == 2, "the last multiple of four before the last token"
    assert accounts(scheduler) == {"free": 6, "cached": 2, "running": 0, "capacity": 8}


def test_a_conversation_goes_on_from_the_state_behind_its_last_output() -> None:
    scheduler, device = make(capacity=4000, states=8), Device()
    first = [5] * 30
    serve(scheduler, device, "a", first, params={"max_new_tokens": 9, "stop_token_ids": ()})
    second = [*first, *expected(first, 9), 1, 2, 3]
    assert serve(scheduler, device, "b", second, params={"max_new_tokens": 1}) == 4, (
        "the output's last token, and three"
    )


def test_a_prefix_that_others_have_is_kept_where_the_prompts_part() -> None:
    """The first prompt that branches off recomputes the prefix to get its state; later ones reuse that state."""
    scheduler, device = make(capacity=4000, states=8), Device()
    shared, once = [*range(100, 121)], {"max_new_tokens": 1}
    cached = [
        serve(scheduler, device, str(own), [*shared, own, own, own, own, own, own], params=once) for own in range(4)
    ]
    assert cached == [27, 27, 6, 6]


@pytest.mark.parametrize("page_size", [1, 4])
def test_prompts_that_share_a_prefix_and_arrive_together(page_size: int) -> None:
    scheduler, device = make(capacity=8000, page_size=page_size, chunk_size=512, max_running=16, states=40), Device()
    shared = list(range(100, 228))
    prompts = {str(index): [*shared, 300 + index, 1, 2, 3] for index in range(8)}
    for id, tokens in prompts.items():
        submit(scheduler, id, tokens)
    assert finish(scheduler, device) == {id: expected(tokens) for id, tokens in prompts.items()}
    assert device.computed < 2 * len(shared) + 8 * 9, "computed by the first, and once more where they part"


def test_salts_do_not_share_states() -> None:
    scheduler, device = make(capacity=4000, states=8), Device()
    for salt in ("x", "y", "x"):
        before = device.computed
        submit(scheduler, salt, [9] * 30, salt=salt, params={"max_new_tokens": 1})
        finish(scheduler, device)
    assert device.computed - before == 2


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    scheduler, device = make(capacity=4000, cache=NoCache, states=8), Device()
    for id in "ab":
        assert serve(scheduler, device, id, [5] * 30, params={"max_new_tokens": 1}) == 30
    assert accounts(scheduler) == {"free": 8, "cached": 0, "running": 0, "capacity": 8}


def test_states_of_running_sequences_push_out_those_that_were_used_longest_ago() -> None:
    scheduler, device = make(capacity=4000, states=3), Device()
    once = {"max_new_tokens": 1}
    for number in (5, 6, 7, 8):
        serve(scheduler, device, str(number), [number] * 30, params=once)
    assert accounts(scheduler)["cached"] == 3
    assert serve(scheduler, device, "again", [8] * 30, params=once) == 2
    assert serve(scheduler, device, "forgotten", [5] * 30, params=once) == 30


def test_with_one_state_sequences_run_one_after_the_other() -> None:
    scheduler, device = make(capacity=4000, states=1), Device()
    prompts = {id: [number] * 20 for number, id in enumerate("abc", 1)}
    for id, tokens in prompts.items():
        submit(scheduler, id, tokens)
    assert [len(scheduler.plan()), len(scheduler.running)] == [1, 1]
    scheduler.abort("a")
    assert finish(scheduler, device) == {id: expected(prompts[id]) for id in "bc"}


def test_the_only_state_there_is_is_gone_on_from_where_it_is() -> None:
    scheduler, device = make(capacity=4000, states=1), Device()
    first = [5] * 30
    serve(scheduler, device, "a", first, params={"max_new_tokens": 9, "stop_token_ids": ()})
    second = [*first, *expected(first, 9), 1, 2, 3]
    assert serve(scheduler, device, "b", second, params={"max_new_tokens": 1}) == 4
    assert accounts(scheduler) == {"free": 0, "cached": 1, "running": 0, "capacity": 1}


def test_a_sequence_that_was_retracted_goes_on_from_its_state() -> None:
    scheduler, device = make(capacity=60, states=8), Device()
    for id, number in (("a", 3), ("b", 4)):
        submit(scheduler, id, [number] * 20, params={"max_new_tokens": 18, "stop_token_ids": ()})
    while scheduler.counters.retracted == 0:
        step(scheduler, device)
    assert accounts(scheduler)["cached"] >= 1
    assert not finish(scheduler, device).keys() - {"a", "b"}
    assert device.computed < 2 * 20 + 2 * 17 + 20, "what was computed of the prompt was not computed again"


def test_flushing_forgets_states() -> None:
    scheduler, device = make(capacity=4000, states=8), Device()
    serve(scheduler, device, "a", [5] * 30)
    assert scheduler.flush()
    assert accounts(scheduler) == {"free": 8, "cached": 0, "running": 0, "capacity": 8}


def test_an_abort_in_the_middle_of_a_prompt_leaves_its_state() -> None:
    scheduler, device = make(capacity=4000, states=8, chunk_size=16), Device()
    submit(scheduler, "a", [5] * 40)
    step(scheduler, device)
    scheduler.abort("a")
    assert serve(scheduler, device, "b", [5] * 40, params={"max_new_tokens": 1}) == 24


def test_a_failed_sequence_leaves_no_state() -> None:
    scheduler, device = make(capacity=4000, states=8), Device()
    submit(scheduler, "a", [5] * 30)
    chunks = scheduler.plan()
    device.run(chunks)
    scheduler.fail(chunks[0].sequence, "broken")
    assert accounts(scheduler) == {"free": 8, "cached": 0, "running": 0, "capacity": 8}


def test_what_a_step_on_the_device_adds_to_a_state_is_remembered_with_it() -> None:
    """A stop token is known only after the next step was launched, so that the cached state includes it."""
    prompt = prompt_that_stops(after=6)
    bench = Bench(capacity=300, states=8)
    bench.submit("a", prompt, 60, stops=(STOP,))
    bench.finish()
    output = bench.tokens("a")
    assert output[-1] == STOP
    known = [*prompt, *output]
    bench.submit("b", [*known, 1, 2], 1)
    bench.finish()
    assert bench.tokens("b") == piped([*known, 1, 2], 1)
    cached = [output.cached_tokens for output in bench.outputs() if output.id == "b"]
    assert cached[-1] == len(known)


def test_an_abort_before_a_state_that_was_to_be_kept_is_there() -> None:
    scheduler, device = make(capacity=4000, states=8, chunk_size=64), Device()
    submit(scheduler, "a", [5] * 30)
    device.run(scheduler.plan())
    assert accounts(scheduler)["running"] == 2, "its own, and the one that is to be kept"
    scheduler.abort("a")
    assert accounts(scheduler)["running"] == 0
    scheduler.check()
