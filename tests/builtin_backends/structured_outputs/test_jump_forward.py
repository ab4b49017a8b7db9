"""Forced tokens in a whole engine with the demo model: outputs are valid, and take fewer steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    Constraint,
    EngineConfig,
    LogprobOptions,
    Output,
    ReasoningPrefix,
    Request,
    SamplingParams,
    StepStats,
)
from sglang_plug.config import BackendOptions, CacheOptions, ScheduleOptions
from sglang_plug.contracts.text.tokenizer import Tokenizer, TokenizerSource
from sglang_plug.engine.scheduling.admission_rules import GrowthReserve
from sglang_plug.engine.startup import build
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

pytestmark = pytest.mark.whole_engine

PATTERN = r"Anna lives in (Paris|London), and she (likes|drinks) (tea|coffee) in the (morning|evening)\."
NAMES = ("first_name", "country_of_birth", "identification_number", "favourite_colour")
SCHEMA = {
    "type": "object",
    "properties": {name: {"enum": ["red", "green", "blue"]} for name in NAMES},
    "required": list(NAMES),
}
REGEX, JSON = Constraint("regex", PATTERN), Constraint("json_schema", json.dumps(SCHEMA))


@pytest.fixture(autouse=True)
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit sequences without reserving slots for their growth, so that small pools run out of slots."""
    monkeypatch.setattr(build, "GrowthReserve", lambda: GrowthReserve(0.0, 0.0, 0.0, 0.0))


class Bench:
    def __init__(self, serve: Callable[..., Any], *, jump: bool = True, **options: Any) -> None:
        cache = {name: options.pop(name) for name in ("max_total_tokens", "prefix_cache") if name in options}
        config = EngineConfig(
            backends=BackendOptions(disable_jump_forward=not jump),
            cache=CacheOptions(**cache),
            schedule=ScheduleOptions(**options),
            log_level="warning",
        )
        self.served = serve(config)
        self.steps: list[StepStats] = []
        self.served.client.on_step(lambda stats: self.steps.append(stats) if stats.seconds else None)
        self.tokenizer: Tokenizer = load_tokenizer(TokenizerSource(path=Path(self.served.info["checkpoint_path"])))

    def request(
        self, constraint: Constraint, id: str = "a", prompt: str = "Tell me about Anna.", **options: Any
    ) -> Request:
        fields = {name: options.pop(name) for name in ("logprobs", "reasoning_prefix") if name in options}
        text = self.tokenizer.chat([{"role": "user", "content": prompt}])
        stops = self.tokenizer.eos_token_ids
        params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 90, "stop_token_ids": stops, **options})
        tokens = tuple(self.tokenizer.encode(text, special=False))
        return Request(id=id, tokens=tokens, params=params, constraint=constraint, **fields)

    def ask(self, *requests: Request) -> list[Output]:
        self.steps.clear()
        outputs: list[Output] = self.served.outputs(requests)
        return outputs

    def text(self, output: Output) -> str:
        tokens = (
            output.tokens[:-1] if output.finish is not None and output.finish.matched is not None else output.tokens
        )
        return self.tokenizer.decode(tokens)

    @property
    def forced(self) -> int:
        return sum(step.forced_tokens for step in self.steps)


ONE_WAY = (
    Constraint("choice", '["the only answer there is"]'),
    Constraint("regex", r"Anna lives in Paris, and she likes tea in the morning\."),
    Constraint("json_schema", json.dumps({**SCHEMA, "properties": {name: {"const": "red"} for name in NAMES}})),
)


def test_fewer_steps_and_the_same_text(serve: Callable[..., Any]) -> None:
    """Texts without a choice are equal; other texts may differ, because forced text is tokenized differently."""
    benches = {jump: Bench(serve, jump=jump) for jump in (True, False)}
    for constraint in (*ONE_WAY, REGEX, JSON):
        texts, steps = {}, {}
        for jump, bench in benches.items():
            (output,) = bench.ask(bench.request(constraint))
            assert output.finish is not None and output.finish.reason == "stop"
            assert len(bench.steps) == len(output.tokens) - bench.forced
            assert (bench.forced > 0) == jump
            texts[jump], steps[jump] = bench.text(output), len(bench.steps)
        assert steps[True] < (0.2 if constraint in ONE_WAY else 0.7) * steps[False]
        assert texts[True] == texts[False] or constraint not in ONE_WAY
        check(constraint, texts[True])


def check(constraint: Constraint, text: str) -> None:
    if constraint is REGEX:
        assert re.fullmatch(PATTERN, text)
    elif constraint is JSON:
        assert set(json.loads(text)) == set(NAMES)


def test_log_probabilities_are_those_of_the_same_tokens_in_a_prompt(serve: Callable[..., Any]) -> None:
    """The log-probabilities are equal with cached prefixes, in small chunks, and with retractions."""
    bench = Bench(serve, chunked_prefill_size=7, max_total_tokens=80)
    reported = [
        bench.request(constraint, f"{index}{constraint.kind}", logprobs=LogprobOptions(top=2))
        for constraint in (REGEX, JSON)
        for index in range(3)
    ]
    outputs = bench.ask(*reported)
    assert bench.forced > 60 and sum(step.retracted for step in bench.steps) > 0
    for request, output in zip(reported, outputs, strict=True):
        assert tuple(entry.token for entry in output.logprobs) == output.tokens
        tokens = (*request.tokens, *output.tokens)
        whole = Request(
            id="whole",
            tokens=tokens,
            params=SamplingParams(max_new_tokens=1),
            logprobs=LogprobOptions(start=len(request.tokens), top=2),
        )
        (checked,) = bench.ask(whole)
        for entry, other in zip(output.logprobs, checked.prompt_logprobs, strict=True):
            assert entry.token == other.token and entry.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [token for token, _ in entry.top] == [token for token, _ in other.top]


def test_the_limit_is_kept_to(serve: Callable[..., Any]) -> None:
    bench = Bench(serve)
    (whole,) = bench.ask(bench.request(REGEX))
    for limit in range(len(whole.tokens) + 1):
        for logprobs in (None, LogprobOptions()):
            (output,) = bench.ask(bench.request(REGEX, max_new_tokens=limit, logprobs=logprobs))
            assert output.finish is not None
            assert len(output.tokens) == limit or (output.finish.reason == "stop" and len(output.tokens) < limit)
            assert bench.text(whole).startswith(bench.text(output)), "the last token may be cut in another way"
            assert len(output.logprobs) == (0 if logprobs is None else len(output.tokens))


def test_outputs_do_not_depend_on_room_chunks_and_neighbours(serve: Callable[..., Any]) -> None:
    wide, tight = Bench(serve), Bench(serve, chunked_prefill_size=5, max_total_tokens=80)
    constraints = [REGEX, JSON, REGEX, JSON]
    for params in ({}, {"temperature": 1.5, "seed": 3}, {"frequency_penalty": 1.0, "seed": 4, "temperature": 1.0}):
        requests = [wide.request(constraint, str(index), **params) for index, constraint in enumerate(constraints)]
        alone, forced = [], 0
        for request in requests:
            alone += wide.ask(request)
            forced += wide.forced
        together = tight.ask(*requests)
        assert sum(step.retracted for step in tight.steps) > 0 and tight.forced == forced > 0
        assert [output.tokens for output in together] == [output.tokens for output in alone]
        for constraint, output in zip(constraints, alone, strict=True):
            check(constraint, wide.text(output))


def test_the_minimum_counts_forced_tokens(serve: Callable[..., Any]) -> None:
    bench = Bench(serve)
    (output,) = bench.ask(bench.request(Constraint("regex", "the first of them( and more)*"), min_new_tokens=12))
    assert len(output.tokens) >= 12 and bench.forced > 0


# -- after a reasoning prefix --------------------------------------------------------------------------------


def after(bench: Bench, end: str, opening: str = "") -> ReasoningPrefix:
    encode = bench.tokenizer.encode
    return ReasoningPrefix(
        (tuple(encode(end, special=False)),), tuple(encode(opening, special=False)) if opening else ()
    )


@pytest.mark.parametrize(("jump", "room"), [(True, 110), (False, 4000)])
def test_a_constraint_holds_after_the_preamble(serve: Callable[..., Any], jump: bool, room: int) -> None:
    bench = Bench(serve, jump=jump, max_total_tokens=room)
    requests = [bench.request(JSON, str(index), reasoning_prefix=after(bench, ".")) for index in range(3)]
    for output in bench.ask(*requests):
        thoughts, _, answer = bench.text(output).partition(".")
        assert thoughts and set(json.loads(answer)) == set(NAMES)
        assert output.finish is not None and output.finish.reason == "stop"
    assert (bench.forced > 0) == jump
    assert (sum(step.retracted for step in bench.steps) > 0) == (room == 110)


def test_an_output_that_is_cut_off_in_its_preamble(serve: Callable[..., Any]) -> None:
    bench = Bench(serve)
    (output,) = bench.ask(bench.request(JSON, max_new_tokens=30, reasoning_prefix=after(bench, "</think>")))
    assert output.finish is not None and output.finish.reason == "length"
    assert len(output.tokens) == 30, "a stop token cannot end it"


def test_an_optional_preamble_is_the_models_choice(serve: Callable[..., Any]) -> None:
    bench = Bench(serve)
    reasoning_prefix = after(bench, ".", "Hello")
    (plain,) = bench.ask(bench.request(JSON, reasoning_prefix=reasoning_prefix))
    assert set(json.loads(bench.text(plain))) == set(NAMES)
    bias = dict.fromkeys(reasoning_prefix.opening, 50.0)
    (thought,) = bench.ask(bench.request(JSON, reasoning_prefix=reasoning_prefix, logit_bias=bias, max_new_tokens=20))
    assert bench.text(thought).startswith("Hello")


def test_bad_preambles_are_refused(serve: Callable[..., Any]) -> None:
    bench = Bench(serve)
    request = bench.request(JSON)
    for reasoning_prefix, message in (
        (ReasoningPrefix(()), "needs an end marker"),
        (ReasoningPrefix(((),)), "needs an end marker"),
        (ReasoningPrefix(((1,),), (1 << 20,)), "not in the vocabulary"),
    ):
        with pytest.raises(Exception, match=message):
            bench.ask(replace(request, reasoning_prefix=reasoning_prefix))
