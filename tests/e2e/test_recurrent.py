"""Served models with recurrent states: prefixes, conversations, pages, memory, weights, and refused options."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, Output, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions, SpeculativeOptions

FAMILY = "qwen3.5"


def prompt(length: int, seed: int = 3) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 512) for _ in range(length)]


def config(path: Any, *, chunk: int = 8192, algorithm: str = "auto", attention: str = "torch", **cache: Any) -> Any:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"),
        cache=CacheOptions(**{"max_total_tokens": 4096, **cache}),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=16),
        backends=BackendOptions(attention=attention),
        speculative=SpeculativeOptions(algorithm=algorithm),
    )


def ask(engine: Any, tokens: list[int], count: int, **params: Any) -> Output:
    request = Request(
        id=str(random.random()),
        tokens=tuple(tokens),
        params=SamplingParams(max_new_tokens=count, temperature=0.0, **params),
    )
    (output,) = engine.outputs([request])
    assert isinstance(output, Output)
    return output


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_conversation_reuses_what_it_has_said(
    page_size: int, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    model = tiny_model(FAMILY)
    engine = serve(config(model.path, page_size=page_size))
    conversation, reused = prompt(70), []
    for turn in range(3):
        output = ask(engine, conversation, 12)
        assert list(output.tokens) == model.greedy(conversation, 12, output.tokens)
        reused.append((output.cached_tokens, len(conversation)))
        conversation = [*conversation, *output.tokens, *prompt(5, seed=turn)]
    assert reused[0] == (0, 70)
    if page_size == 1:  # all but the last token of what was said before, and what the user adds
        assert [length - cached for cached, length in reused[1:]] == [6, 6]
    else:
        assert [cached for cached, _ in reused[1:]] == [64, 64], "whole pages, so not what was said last"
    states = engine.control("info")["states"]
    assert states["running"] == 0 and states["cached"] > 0


def test_a_shared_beginning_is_reused_once_two_have_parted_from_it(
    tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    model, beginning = tiny_model(FAMILY), prompt(100)
    engine = serve(config(model.path, chunk=32))
    cached = []
    for own in range(4):
        tokens = [*beginning, *prompt(20, seed=own)]
        output = ask(engine, tokens, 8)
        assert list(output.tokens) == model.greedy(tokens, 8, output.tokens)
        cached.append(output.cached_tokens)
    assert cached == [0, 64, 100, 100]


def test_few_states_serve_many_requests(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    model = tiny_model(FAMILY)
    engine = serve(config(model.path, max_states=3))
    assert engine.info["max_running_requests"] == 3
    prompts = [prompt(20 + index, seed=index) for index in range(9)]
    params = SamplingParams(max_new_tokens=8, temperature=0.0)
    outputs = engine.outputs(
        [Request(id=str(n), tokens=tuple(prompt), params=params) for n, prompt in enumerate(prompts)]
    )
    for tokens, output in zip(prompts, outputs, strict=True):
        assert list(output.tokens) == model.greedy(tokens, 8, output.tokens)
    assert engine.control("info")["states"]["capacity"] == 3


def test_new_weights_know_no_old_states(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Any
) -> None:
    model = tiny_model(FAMILY)
    engine = serve(config(model.path))
    tokens = prompt(90)
    first = ask(engine, tokens, 8)
    engine.control("update_weights", source=str(model.path))
    again = ask(engine, tokens, 8)
    assert (again.tokens, again.cached_tokens) == (first.tokens, 0)


def test_guesses_are_refused(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="recurrent states cannot be taken back"):
        serve(config(tiny_model(FAMILY).path, algorithm="ngram"))


def test_more_states_than_memory_are_refused(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="no memory for 1000000000 recurrent states: .* set --max-states"):
        serve(config(tiny_model(FAMILY).path, max_states=10**9))


def test_a_model_without_states_has_none(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    engine = serve(config(tiny_model("qwen3-0.6b").path, max_states=3))
    assert engine.control("info")["states"] is None
    assert engine.info["max_running_requests"] == 16
