"""Paused requests, whose clients read too slowly, are not computed, hold no slots, and lose no output."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Constraint, LogprobOptions
from sglang_plug.engine.messages.api_messages import Abort, Pause, Resume
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from tests.core.engine.execution.overlap_bench import QUESTIONS, SCHEMA, Engine, numbers, without_numbers

from .scheduler_bench import Device, expected, finish, make, room, step, submit

pytestmark = pytest.mark.whole_engine


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_paused_at_any_time_the_output_is_the_same(data: st.DataObject) -> None:
    draw = data.draw
    scheduler = make(
        capacity=draw(st.integers(60, 120)),
        cache=draw(st.sampled_from([RadixCache, NoCache])),
        chunk_size=draw(st.sampled_from([3, 16])),
        max_running=draw(st.integers(1, 4)),
        states=draw(st.sampled_from([None, 3, 20])),
    )
    device, tokens = Device(), dict[str, list[int]]()
    prompts = {str(index): [1] * 10 + [index] for index in range(4)}
    for id, prompt in prompts.items():
        submit(scheduler, id, prompt)
    for _ in range(draw(st.integers(1, 15))):
        changed = draw(st.sampled_from(sorted(prompts)))
        (scheduler.pause if draw(st.booleans()) else scheduler.resume)(changed)
        scheduler.check()
        if scheduler.busy:
            for output in step(scheduler, device):
                assert output.id not in scheduler.paused
                tokens.setdefault(output.id, []).extend(output.tokens)
    for id in prompts:
        scheduler.resume(id)
    later = finish(scheduler, device)
    actual = {id: tokens.get(id, []) + later.get(id, []) for id in prompts}
    assert actual == {id: expected(prompt, room(scheduler, prompt)) for id, prompt in prompts.items()}
    scheduler.flush()
    assert scheduler.accounts()["free"] == scheduler.pool.capacity


def test_paused_requests_leave_their_running_and_kv_slots_to_others() -> None:
    scheduler, device = make(capacity=200, max_running=2), Device()
    for id in ("a", "b"):
        submit(scheduler, id, [int(id, 16)] * 25)
    while len(scheduler.running) < 2:
        step(scheduler, device)
    submit(scheduler, "c", [3] * 25)
    step(scheduler, device)
    assert len(scheduler.waiting) == 1
    scheduler.pause("a")
    scheduler.pause("b")
    assert scheduler.accounts()["running"] == 0
    assert finish(scheduler, device) == {"c": expected([3] * 25, room(scheduler, [3] * 25))}
    assert set(scheduler.paused) == {"a", "b"} and not scheduler.busy


def fill(engine: Engine) -> None:
    for number, question in enumerate(QUESTIONS):
        engine.submit(f"greedy {number}", question, max_new_tokens=20 + 5 * number)
    engine.submit("seeded", QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)
    engine.submit("penalised", QUESTIONS[3], temperature=1.0, seed=9, frequency_penalty=0.8, max_new_tokens=40)
    engine.submit("reported", QUESTIONS[2], logprobs=LogprobOptions(start=2, top=3, ids=(5, 6)))
    engine.submit("constrained", QUESTIONS[1], constraint=Constraint("json_schema", SCHEMA), max_new_tokens=60)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_whole_engine_gives_the_same_outputs_when_requests_are_paused(overlap: bool) -> None:
    plain, paused = Engine(overlap=False), Engine(overlap=overlap)
    for engine in (plain, paused):
        fill(engine)
    plain.finish()
    draw, held, turns = random.Random(3), set[str](), 0
    while paused.messages or paused.loop.busy:
        turns += 1
        open_ids = sorted(id for id in plain.outputs if id not in paused.outputs or not paused.outputs[id].finish)
        for id in open_ids:
            if id in held and (draw.random() < 0.3 or not paused.loop.scheduler.busy):
                held.discard(id)
                paused.messages.append(Resume((id,)))
            elif id in paused.outputs and draw.random() < 0.15:
                held.add(id)
                paused.messages.append(Pause((id,)))
        if paused.messages or paused.loop.scheduler.busy or len(paused.loop.held):
            paused.step()
    paused.loop.close()
    assert turns > 20
    for id, output in plain.outputs.items():
        assert without_numbers(paused.outputs[id]).tokens == without_numbers(output).tokens, id
        assert paused.outputs[id].finish == output.finish
        assert numbers(paused.outputs[id]) == pytest.approx(numbers(output), abs=1e-3), id


@pytest.mark.parametrize("overlap", [False, True])
def test_a_paused_request_can_be_aborted_and_an_unknown_one_is_ignored(overlap: bool) -> None:
    engine = Engine(overlap=overlap)
    engine.submit("a", QUESTIONS[0], max_new_tokens=200)
    while "a" not in engine.outputs:
        engine.step()
    engine.messages += [Pause(("a", "unknown")), Resume(("unknown",))]
    engine.step()
    assert engine.loop.busy and not engine.loop.scheduler.busy
    engine.messages.append(Abort(("a",)))
    engine.step()
    finish_ = engine.outputs["a"].finish
    assert finish_ is not None and finish_.reason == "abort"
    assert not engine.loop.busy
    engine.submit("a", QUESTIONS[0], max_new_tokens=3)  # the id is free again
    engine.finish()
