"""Masks that allow tokens which their grammar rejects: outputs are valid, and reproducible with a seed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Constraint, LogprobOptions, Output, PluginOptions, ReasoningPrefix
from sglang_plug.engine.sampling.sampler import uniform_number
from tests.core.engine.execution.overlap_bench import QUESTIONS, Engine

from .grammars_of_words import sequence

pytestmark = pytest.mark.whole_engine

PLUGIN = PluginOptions(files=(str(Path(__file__).with_name("wide_grammars.py")),))
COLOURS = r"(red|green|blue){1,4} or [a-c]{2,6}"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
}
REGEX, JSON = ("regex", COLOURS), ("json_schema", json.dumps(SCHEMA))


def run(fill: Callable[[Engine], None], **options: Any) -> dict[str, Output]:
    engine = Engine(plugins=PLUGIN, **{"overlap": False, **options})
    fill(engine)
    outputs = engine.finish()
    accounts = engine.loop.scheduler.accounts()
    assert accounts["running"] == 0 and accounts["free"] + accounts["cached"] == accounts["capacity"]
    return outputs


def text(output: Output, engine: Engine) -> str:
    assert output.finish is not None and output.finish.reason == "stop", output.finish
    tokens = output.tokens if output.finish.matched is None else output.tokens[:-1]
    return engine.tokenizer.decode(tokens)


def submit_sampled(engine: Engine, *, constrained: bool = True, plain: bool = True) -> None:
    for number, question in enumerate(QUESTIONS):
        options = {"temperature": 1.0, "seed": number, "max_new_tokens": 60}
        if constrained:
            kind, source = (REGEX, JSON)[number % 2]
            engine.submit(f"wide {number}", question, constraint=Constraint(kind, source, backend="wide"), **options)
        if plain:
            engine.submit(f"plain {number}", question, **options)


@cache
def separate() -> dict[str, Output]:
    """Return the outputs of the unconstrained requests, and of the constrained ones when they run one at a time."""
    plain = run(lambda engine: submit_sampled(engine, constrained=False))
    return plain | run(lambda engine: submit_sampled(engine, plain=False), running=1)


@pytest.mark.parametrize("overlap", [False, True])
def test_outputs_are_valid_and_the_same_in_a_batch(overlap: bool) -> None:
    """The engine with overlapped steps also uses graphs."""
    engine = Engine(overlap=overlap, graphs=overlap, plugins=PLUGIN)
    submit_sampled(engine)
    outputs = engine.finish()
    assert overlap == (engine.ahead > 0)
    for number in range(len(QUESTIONS)):
        output = text(outputs[f"wide {number}"], engine)
        if number % 2:
            assert set(json.loads(output)) == {"name", "age"}
        else:
            assert re.fullmatch(COLOURS, output)
    assert {id: output.tokens for id, output in outputs.items()} == {
        id: output.tokens for id, output in separate().items()
    }
    assert all(output.retractions == 0 for output in outputs.values())
    assert engine.loop.scheduler.accounts()["running"] == 0


GREEDY: dict[str, dict[str, Any]] = {
    "alone": {},
    "penalised": {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repetition_penalty": 1.3},
    "reported": {"logprobs": LogprobOptions(start=0, top=2)},
    "without stop tokens": {"stop_token_ids": ()},
    "at the limit": {"max_new_tokens": 3},
    "at least": {"min_new_tokens": 9},
}


@pytest.mark.parametrize("overlap", [False, True])
def test_the_likeliest_of_what_is_accepted_is_taken(overlap: bool) -> None:
    """Greedy outputs equal those with exact masks, with penalties, log-probabilities and forced text."""

    def fill(backend: str) -> Callable[[Engine], None]:
        def submit(engine: Engine) -> None:
            for name, options in GREEDY.items():
                for kind, source in (REGEX, JSON):
                    constraint = Constraint(kind, source, backend=backend)
                    engine.submit(f"{name} {kind}", QUESTIONS[3], constraint=constraint, **options)

        return submit

    exact, wide = run(fill("xgrammar"), overlap=overlap), run(fill("wide"), overlap=overlap)
    for id, output in exact.items():
        other = wide[id]
        stop = output.finish is not None and output.finish.reason == "stop" and output.finish.matched is None
        ends_alike = other.tokens[: len(output.tokens)] == output.tokens
        assert ends_alike and len(other.tokens) - len(output.tokens) in ((0, 1) if stop else (0,)), id
        assert [entry.token for entry in other.logprobs] == list(other.tokens if other.logprobs else ()), id
        for entry, same in zip(output.logprobs, other.logprobs, strict=False):
            assert entry.logprob == pytest.approx(same.logprob, abs=1e-4)
        assert [entry.token for entry in other.prompt_logprobs] == [entry.token for entry in output.prompt_logprobs]


def test_a_constraint_behind_a_preamble() -> None:
    def fill(engine: Engine) -> None:
        ends = tuple((token,) for token in range(300, 4000, 40))
        for seed in range(3):
            constraint = Constraint("regex", "(yes|no){1,3}", backend="wide")
            options = {"constraint": constraint, "reasoning_prefix": ReasoningPrefix(ends=ends)}
            engine.submit(f"{seed}", QUESTIONS[0], temperature=3.0, seed=seed, max_new_tokens=400, **options)

    engine = Engine(overlap=False, plugins=PLUGIN)
    fill(engine)
    for output in engine.finish().values():
        assert re.search("(yes|no){1,3}$", text(output, engine))


def test_a_grammar_that_accepts_nothing_ends_its_request_with_an_error_that_names_it() -> None:
    def fill(engine: Engine) -> None:
        engine.submit("never", QUESTIONS[0], constraint=Constraint("regex", "[ab]+", backend="never"))
        engine.submit("plain", QUESTIONS[1], max_new_tokens=5)

    outputs = run(fill)
    finish = outputs["never"].finish
    assert finish is not None and finish.reason == "error" and finish.status == 500
    assert "NeverGrammar" in finish.message and "accepts none of the tokens" in finish.message
    assert len(outputs["plain"].tokens) == 5


@given(seed=st.integers(0, 2**40))
def test_each_rejection_leads_to_another_number(seed: int) -> None:
    row = sequence(None, seed=seed)
    numbers = [uniform_number(row)]
    for _ in range(2):
        row.sampling.rejections += 1
        numbers.append(uniform_number(row))
    assert len(set(numbers)) == 3 and all(0 <= number < 1 for number in numbers)
