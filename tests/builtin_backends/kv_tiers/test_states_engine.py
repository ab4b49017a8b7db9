"""Whole engines with recurrent states: stored prefixes survive the pools of keys, values and states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builtin_backends.kv_tiers.engine_requests import BLOCKWISE, answer, prompt, request, stored

pytestmark = pytest.mark.whole_engine

Serve = Callable[..., Any]
HYBRID, PURE = "qwen3.5", "mamba-2-130m"
MODELS = [HYBRID, PURE, "mamba-130m", "jamba", "granite-4-tiny", "lfm2-1.2b", "nemotron-3-nano"]


@pytest.mark.parametrize("model", MODELS)
def test_another_engine_continues_from_the_deepest_state(serve: Serve, config: Any, model: str) -> None:
    tokens = prompt(1, 200)
    expected = answer(serve(config("host", "disk", model=model)), tokens)
    second = serve(config("host", "disk", model=model))
    output = answer(second, tokens)
    assert output.tokens == expected.tokens
    assert (expected.cached_tokens, output.cached_tokens, output.loaded_tokens) == (0, 192, (("disk", 192),))
    tiers = stored(second)
    assert tiers["host"]["blocks"] == tiers["disk"]["blocks"], "what was loaded moves up"
    slots = second.control("check")
    assert slots["free"] + slots["cached"] == slots["capacity"]


def test_a_model_without_keys_and_values_stores_states_only(serve: Serve, config: Any) -> None:
    engine = serve(config("disk", model=PURE))
    answer(engine, prompt(1, 200))
    info = engine.control("info")["kv_stores"]
    assert (info["tiers"]["disk"]["blocks"], info["tiers"]["disk"]["stored_bytes"]) == (1, info["state_bytes"])


@pytest.mark.parametrize("model", [HYBRID, PURE])
@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_outputs_are_the_same_with_few_states_and_slots(serve: Serve, config: Any, model: str, page_size: int) -> None:
    prompts = [prompt(number % 6, 70 + 9 * (number % 6)) for number in range(18)]
    requests = [request(str(number), tokens) for number, tokens in enumerate(prompts)]
    options = {"model": model, "page_size": page_size, "slots": 400}
    expected = [output.tokens for output in serve(config(**options)).outputs(requests)]
    tiered = serve(config("host", "disk", max_states=4, **options))
    for _ in range(2):
        assert [output.tokens for output in tiered.outputs(requests)] == expected
        tiered.control("check")
    tiers = stored(tiered)
    assert tiers["host"]["loaded_blocks"] > 0 and tiers["host"]["failed_blocks"] == 0
    assert tiered.control("info")["states"]["running"] == 0


def test_a_shared_beginning_is_stored_where_prompts_part(serve: Serve, config: Any) -> None:
    beginning = prompt(2, 100)
    first = serve(config("disk", model=HYBRID, slots=1024))
    for own in (3, 4):
        answer(first, (*beginning, *prompt(own, 60)))
    tokens = (*beginning, *prompt(5, 60))
    output = answer(serve(config("disk", model=HYBRID)), tokens)
    assert output.loaded_tokens == (("disk", 96),)
    assert output.tokens == serve(config(model=HYBRID)).outputs([request("one", tokens)])[0].tokens


def test_a_state_is_loaded_alone_if_its_keys_and_values_are_in_the_pool(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host", model=HYBRID, slots=1024, max_states=2)), prompt(6, 200)
    expected = answer(engine, tokens)
    for seed in (7, 8):
        answer(engine, prompt(seed, 100))  # their states overwrite the cached rows
    before = stored(engine)["host"]["loaded_bytes"]
    output = answer(engine, tokens)
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("host", 192),))
    assert stored(engine)["host"]["loaded_bytes"] - before == engine.control("info")["kv_stores"]["state_bytes"]


def test_one_state_suffices(serve: Serve, config: Any) -> None:
    tokens = prompt(9, 200)
    expected = answer(serve(config("disk", model=HYBRID)), tokens)
    output = answer(serve(config("disk", model=HYBRID, max_states=1)), tokens)
    assert (output.tokens, output.cached_tokens) == (expected.tokens, 192)


def test_tenants_share_no_states(serve: Serve, config: Any) -> None:
    tokens = prompt(10, 200)
    expected = answer(serve(config("disk", model=PURE)), tokens, salt="a")
    assert answer(serve(config("disk", model=PURE)), tokens, salt="b").loaded_tokens == ()
    assert answer(serve(config("disk", model=PURE)), tokens).loaded_tokens == ()
    output = answer(serve(config("disk", model=PURE)), tokens, salt="a")
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("disk", 192),))


@pytest.mark.parametrize("flush", ["flush_cache", "update_weights"])
def test_no_state_is_left_after_a_flush(
    serve: Serve, config: Any, tiny_model: Callable[[str], Any], flush: str
) -> None:
    engine, tokens = serve(config("host", "disk", model=PURE)), prompt(11, 200)
    expected = answer(engine, tokens)
    arguments = {} if flush == "flush_cache" else {"source": str(tiny_model(PURE).path)}
    assert engine.control(flush, **arguments)["success"]
    output = answer(engine, tokens)
    assert (output.tokens, output.cached_tokens) == (expected.tokens, 0)


@pytest.mark.parametrize("model", [HYBRID, PURE])
@pytest.mark.parametrize("store", ["damaging", "confusing", "short", "raising", "forgetful"])
def test_a_broken_store_costs_hits_only(serve: Serve, config: Any, broken: Path, store: str, model: str) -> None:
    engine, tokens = serve(config(store, model=model, files=[broken])), prompt(12, 200)
    expected = answer(engine, tokens)
    assert engine.control("flush_cache", stored=False)["success"]
    output = answer(engine, tokens)
    assert output.tokens == expected.tokens
    assert output.loaded_tokens == () or (store, model) == ("confusing", PURE), "one state cannot be confused"


def test_a_store_that_has_to_be_waited_for_is_used(serve: Serve, config: Any, broken: Path) -> None:
    engine, tokens = serve(config("remote", model=HYBRID, files=[broken])), prompt(13, 200)
    expected = answer(engine, tokens)
    assert engine.control("flush_cache", stored=False)["success"]
    output = answer(engine, tokens)
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("remote", 192),))


def test_a_prefix_is_inserted_a_part_at_a_time_while_others_decode(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host", model=HYBRID, slots=1024, settings=BLOCKWISE)), prompt(14, 200)
    expected = answer(engine, tokens)
    assert engine.control("flush_cache", stored=False)["success"]
    _, output = engine.outputs([request("decodes", prompt(15, 20), new=80), request("one", tokens)])
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("host", 192),))


def test_a_conversation_continues_from_its_last_prompt(serve: Serve, config: Any) -> None:
    tokens = prompt(16, 100)
    answered = answer(serve(config("disk", model=HYBRID)), tokens, new=30)
    longer = (*tokens, *answered.tokens, *prompt(17, 20))
    output = answer(serve(config("disk", model=HYBRID)), longer)
    assert output.loaded_tokens == (("disk", 96),)
    assert output.tokens == serve(config(model=HYBRID)).outputs([request("one", longer)])[0].tokens
