"""A whole engine with KV stores: outputs stay the same, and prefixes survive eviction and a restart of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, EngineConfig, LogprobOptions
from tests.builtin_backends.kv_tiers.engine_requests import BLOCK, BLOCKWISE, answer, prompt, request, stored

pytestmark = pytest.mark.whole_engine

Serve = Callable[[EngineConfig], Any]


@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_outputs_are_the_same_with_and_without_stores(serve: Serve, config: Any, page_size: int) -> None:
    prompts = [prompt(number % 8, 60 + 5 * (number % 8)) for number in range(24)]
    requests = [request(str(number), tokens) for number, tokens in enumerate(prompts)]
    plain = serve(config(page_size=page_size))
    tiered = serve(config("host", "disk", page_size=page_size))
    expected = [output.tokens for output in plain.outputs(requests)]
    for _ in range(2):
        assert [output.tokens for output in tiered.outputs(requests)] == expected
    tiers = stored(tiered)
    assert tiers["host"]["loaded_blocks"] > 0 and tiers["host"]["failed_blocks"] == 0
    slots = tiered.control("check")
    assert slots["free"] + slots["cached"] == slots["capacity"]


def test_another_engine_continues_from_the_directory(serve: Serve, config: Any) -> None:
    first, tokens = serve(config("host", "disk")), prompt(1)
    expected = answer(first, tokens)
    assert (expected.cached_tokens, expected.loaded_tokens) == (0, ())
    second = serve(config("host", "disk"))
    output = answer(second, tokens)
    assert output.tokens == expected.tokens
    assert (output.cached_tokens, output.loaded_tokens) == (96, (("disk", 96),))
    assert stored(second)["host"]["blocks"] == 6, "blocks that were loaded move up"
    again = answer(second, tokens)
    assert (again.tokens, again.cached_tokens, again.loaded_tokens) == (expected.tokens, 99, ())


def test_a_conversation_finds_its_answer_too(serve: Serve, config: Any) -> None:
    first, tokens = serve(config("disk")), prompt(2, 40)
    answered = answer(first, tokens, new=30)
    longer = (*tokens, *answered.tokens, *prompt(3, 20))
    second = serve(config("disk"))
    output = answer(second, longer)
    assert output.loaded_tokens == (("disk", 64),)  # 40 and 29 tokens were computed, in blocks of 16
    assert output.tokens == serve(config()).outputs([request("one", longer)])[0].tokens


def test_a_prefix_continues_where_the_pool_ends(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host", slots=160)), prompt(4, 128)
    expected = answer(engine, tokens)
    answer(engine, tokens[:40], new=1)  # its prefix is used last, so that the rest is evicted first
    answer(engine, prompt(5, 70))
    output = answer(engine, tokens)
    assert output.tokens == expected.tokens
    (name, loaded), *_ = output.loaded_tokens
    assert name == "host" and 0 < loaded <= output.cached_tokens <= 127


def test_tenants_share_nothing(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host", "disk")), prompt(6)
    answer(engine, tokens, salt="a")
    assert answer(serve(config("disk")), tokens, salt="b").loaded_tokens == ()
    assert answer(serve(config("disk")), tokens).loaded_tokens == ()
    assert answer(serve(config("disk")), tokens, salt="a").loaded_tokens == (("disk", 96),)


@pytest.mark.parametrize("flush", ["flush_cache", "update_weights"])
def test_nothing_is_left_after_a_flush(serve: Serve, config: Any, tiny_model: Callable[[str], Any], flush: str) -> None:
    engine, tokens = serve(config("host", "disk")), prompt(7)
    expected = answer(engine, tokens)
    arguments = {} if flush == "flush_cache" else {"source": str(tiny_model("llama-3.2-1b").path)}
    assert engine.control(flush, **arguments)["success"]
    assert [tier["blocks"] for tier in stored(engine).values()] == [0, 0]
    output = answer(engine, tokens)
    assert (output.tokens, output.cached_tokens) == (expected.tokens, 0)
    engine.control(flush, **arguments)
    assert answer(serve(config("disk")), tokens).cached_tokens == 0


def test_other_weights_and_another_dtype_share_nothing(serve: Serve, config: Any, tmp_path: Path) -> None:
    tokens = prompt(8)
    answer(serve(config("disk")), tokens)
    for other in (config("disk", model="qwen3-0.6b"), config("disk", kv_dtype="bfloat16"), config("disk", page_size=8)):
        assert answer(serve(other), tokens).cached_tokens == 0
    assert answer(serve(config("disk")), tokens).cached_tokens == 96


def test_an_fp8_pool_is_stored_with_its_scales(serve: Serve, config: Any) -> None:
    tokens = prompt(9)
    expected = answer(serve(config("disk", kv_dtype="fp8_e4m3")), tokens)
    output = answer(serve(config("disk", kv_dtype="fp8_e4m3")), tokens)
    assert (output.tokens, output.cached_tokens) == (expected.tokens, 96)


def test_prompt_logprobs_are_computed(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host")), prompt(10)
    answer(engine, tokens)
    engine.control("flush_cache", stored=False)
    options = LogprobOptions(start=50)
    output = answer(engine, tokens, logprobs=options)
    assert len(output.prompt_logprobs) == 50
    assert output.loaded_tokens == (("host", 48),)


@pytest.mark.parametrize("store", ["damaging", "confusing", "short", "raising", "slow", "forgetful"])
def test_a_broken_store_costs_hits_only(serve: Serve, config: Any, broken: Path, store: str) -> None:
    tiers = {"kv-tiers": {"block_tokens": BLOCK, "load": "always", "load_seconds": 0.2}}
    engine, tokens = serve(config(store, files=[broken], settings=tiers)), prompt(11)
    expected = answer(engine, tokens)
    engine.control("flush_cache", stored=False)
    for _ in range(2):
        output = answer(engine, tokens)
        assert (output.tokens, output.loaded_tokens) == (expected.tokens, ())


def test_a_store_that_is_slower_than_computing_is_not_waited_for_again(
    serve: Serve, config: Any, broken: Path, slow_prefill: Path
) -> None:
    tiers = {"kv-tiers": {"block_tokens": BLOCK}}
    engine, tokens = serve(config("crawling", files=[broken, slow_prefill], settings=tiers)), prompt(11)
    expected = answer(engine, tokens)
    loaded = list[tuple[int, int]]()
    for _ in range(4):
        engine.control("flush_cache", stored=False)
        assert answer(engine, tokens).tokens == expected.tokens
        counts = stored(engine)["crawling"]
        loaded.append((counts["loaded_blocks"], counts["failed_blocks"]))
    assert 1 <= loaded[0][0] < 6 and loaded == loaded[:1] * 4


def test_a_store_that_has_to_be_waited_for_is_used(serve: Serve, config: Any, broken: Path) -> None:
    engine, tokens = serve(config("remote", files=[broken])), prompt(12)
    expected = answer(engine, tokens)
    engine.control("flush_cache", stored=False)
    output = answer(engine, tokens)
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("remote", 96),))


def test_a_store_that_cannot_be_emptied_is_not_used_any_more(serve: Serve, config: Any, broken: Path) -> None:
    engine, tokens = serve(config("unclearable", files=[broken])), prompt(13)
    answer(engine, tokens)
    assert engine.control("flush_cache")["success"]
    assert engine.outputs([request("one", tokens)])[0].cached_tokens == 0
    assert engine.control("info")["kv_stores"] is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prefix_cache": "none"}, "--prefix-cache none switches off"),
        ({"settings": {"disk": {}}}, "--set disk.path=DIR"),
        ({"settings": {"disk": {"path": "/proc/no"}}}, "cannot be used"),
        ({"settings": {"disk": {"path": "x", "bytes": "much"}}}, "must be a size"),
    ],
)
def test_what_cannot_be_served_is_refused(serve: Serve, config: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(config("disk", **fields))


def test_an_unknown_store_is_named(serve: Serve, config: Any) -> None:
    with pytest.raises(ConfigError, match="'dsk'.*'disk'"):
        serve(config("dsk"))


def test_a_request_that_is_aborted_while_it_is_held_leaves_nothing(serve: Serve, config: Any, broken: Path) -> None:
    engine, tokens = serve(config("slow", files=[broken])), prompt(14)
    expected = answer(engine, tokens)
    engine.control("flush_cache", stored=False)

    async def abandon() -> None:
        outputs = engine.client.submit(request("held", tokens))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(outputs), 0.3)
        await outputs.aclose()

    engine.runner.run(abandon())
    assert engine.control("info")["waiting"] == 0
    assert engine.outputs([request("other", prompt(15))])[0].tokens
    assert engine.outputs([request("one", tokens)])[0].tokens == expected.tokens
    slots = engine.control("check")
    assert slots["free"] + slots["cached"] == slots["capacity"]


def test_a_long_prefix_is_inserted_a_part_at_a_time_while_others_decode(serve: Serve, config: Any) -> None:
    engine, tokens = serve(config("host", slots=512, settings=BLOCKWISE)), prompt(16, 200)
    expected = answer(engine, tokens)
    engine.control("flush_cache", stored=False)
    decoding = request("decodes", prompt(17, 20), new=80)
    _, output = engine.outputs([decoding, request("one", tokens)])
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("host", 192),))


def test_latent_keys_and_values_are_stored(serve: Serve, config: Any) -> None:
    tokens = prompt(18)
    expected = answer(serve(config("disk", model="deepseek-v3")), tokens)
    output = answer(serve(config("disk", model="deepseek-v3")), tokens)
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("disk", 96),))
