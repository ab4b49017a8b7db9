"""A whole engine with the demo model gives equal outputs with and without overlapped steps."""

from __future__ import annotations

import json

import pytest

from sglang_plug import (
    Constraint,
    EngineConfig,
    LogprobOptions,
    Plugins,
)
from sglang_plug.config import BackendOptions, CacheOptions, ScheduleOptions
from sglang_plug.engine.execution.runner import Runner
from sglang_plug.engine.messages.api_messages import Abort
from sglang_plug.engine.startup import build
from sglang_plug.engine.watchdog import Heartbeat

from .overlap_bench import QUESTIONS, SCHEMA, Engine, compare_with_overlap, numbers, without_numbers

pytestmark = pytest.mark.whole_engine


@pytest.mark.parametrize("graphs", [False, True])
def test_all_ways_of_sampling(graphs: bool) -> None:
    def fill(engine: Engine) -> None:
        for number, question in enumerate(QUESTIONS):
            engine.submit(f"greedy {number}", question, max_new_tokens=6 + 5 * number)
        engine.submit("seeded", QUESTIONS[0], temperature=1.0, seed=7, top_p=0.9)
        engine.submit("cut", QUESTIONS[1], temperature=1.3, seed=8, top_k=5, min_p=0.02)
        engine.submit("once", QUESTIONS[3], max_new_tokens=1)
        penalties = {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.2}
        engine.submit("penalised", QUESTIONS[2], **penalties)
        engine.submit("penalised too", QUESTIONS[3], temperature=1.0, seed=9, max_new_tokens=40, **penalties)
        stops = tuple(range(0, 400, 3))
        engine.submit("stopped", QUESTIONS[0], stop_token_ids=stops)
        engine.submit("stopped late", QUESTIONS[0], stop_token_ids=stops, min_new_tokens=9)
        engine.submit("biased", QUESTIONS[1], logit_bias={50: 4.0}, max_new_tokens=15)
        engine.submit("reported", QUESTIONS[2], logprobs=LogprobOptions(start=2, top=3, ids=(5, 6)))

    engines = compare_with_overlap(fill, graphs=graphs)
    reasons = {id: output.finish.reason for id, output in engines[0].outputs.items() if output.finish}
    assert reasons["stopped"] == reasons["stopped late"] == "stop"
    assert len(engines[0].outputs["stopped late"].tokens) >= 9 > len(engines[0].outputs["stopped"].tokens)


@pytest.mark.parametrize("graphs", [False, True])
def test_constraints_among_others(graphs: bool) -> None:
    """Forward passes are launched before masks and forced tokens are known."""

    colours, letters = Constraint("regex", r"(red|green|blue){4}"), Constraint("regex", "[a-z ]{60}")
    schema = Constraint("json_schema", SCHEMA)

    def fill(engine: Engine) -> None:
        # compiled before, so that no request waits for its grammar
        for number, constraint in enumerate((colours, letters, schema)):
            engine.submit(f"first {number}", QUESTIONS[0], constraint=constraint, max_new_tokens=1)
            while len(engine.outputs) <= number:  # one after the other, because grammars are compiled in any order
                engine.step()
        engine.submit("free", QUESTIONS[0], max_new_tokens=60)
        engine.submit("regex", QUESTIONS[1], constraint=colours, max_new_tokens=30)
        engine.submit("schema", QUESTIONS[3], constraint=schema, max_new_tokens=40)
        penalties = {"frequency_penalty": 0.8, "presence_penalty": 0.4}
        sampled = {"temperature": 1.0, "seed": 5, **penalties}
        engine.submit("sampled", QUESTIONS[2], constraint=letters, max_new_tokens=80, **sampled)
        reported = LogprobOptions(start=-1, top=2)
        engine.submit("reported", QUESTIONS[3], constraint=colours, max_new_tokens=9, logprobs=reported)
        engine.submit("long", "A long one. " * 12, constraint=colours, max_new_tokens=20)
        while {"regex", "schema", "sampled"} - engine.outputs.keys():
            engine.step()
        engine.submit("late", QUESTIONS[1], constraint=colours, max_new_tokens=20)

    engines = [Engine(overlap=overlap, graphs=graphs) for overlap in (False, True)]
    for engine in engines:
        fill(engine)
        engine.finish()
    for id, output in engines[0].outputs.items():
        assert without_numbers(engines[1].outputs[id]) == without_numbers(output), id
        assert numbers(engines[1].outputs[id]) == pytest.approx(numbers(output), abs=1e-4), id
    assert json.loads(engines[1].text("schema"))["age"] <= 99
    assert engines[1].ahead > 10 and engines[1].deferred > 5, engines[1].deferred


def test_retractions_and_arrivals() -> None:
    def fill(engine: Engine) -> None:
        for number in range(8):
            more = {"temperature": 1.0, "seed": number} if number % 2 else {}
            engine.submit(str(number), QUESTIONS[number % 4], max_new_tokens=50, stop_token_ids=(), **more)
            if number % 3 == 2:
                engine.step()
        engine.messages.append(Abort(("7",)))
        engine.step()

    results = []
    for overlap in (False, True):
        engine = Engine(overlap=overlap, pool=200)
        fill(engine)
        results.append(engine.finish())
        assert sum(output.retractions for output in engine.outputs.values()) > 0
    assert engine.ahead > 10
    for id, output in results[0].items():
        assert results[1][id].tokens == output.tokens, id
        assert results[1][id].finish == output.finish


def test_it_is_on_where_the_device_works_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "asynchronous", True)
    for disabled in (False, True):
        config = EngineConfig(
            cache=CacheOptions(max_total_tokens=64),
            schedule=ScheduleOptions(disable_overlap_schedule=disabled),
            backends=BackendOptions(disable_cuda_graph=True),
        )
        plugins = Plugins.discover(config.plugins)
        loop = build.build_engine(config, plugins, None, lambda message: None, Heartbeat())  # type: ignore[arg-type]
        loop.close()
        assert loop.pipeline.overlap is not disabled
