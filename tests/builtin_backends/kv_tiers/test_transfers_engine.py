"""Two whole engines, of which one computes prompts for the other (disaggregated prefill)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    EngineConfig,
    KVTransfer,
    LogprobOptions,
    Output,
    Request,
    SamplingParams,
)
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug_api.engine_clients.replicas.prefilled_client import prompt_request

pytestmark = pytest.mark.whole_engine

Serve = Callable[[EngineConfig], Any]
BLOCK = 16
SECRET = "a secret that the engines share"
PLUGIN = Path(__file__).with_name("transfer_plugin.py")
WATCHED = frozenset({"noting", "parts", "losing"})
"""Names of the KV stores in the test's plugin."""


@pytest.fixture
def config(tiny_model: Callable[[str], Any], tmp_path: Path) -> Callable[..., EngineConfig]:
    """Return ``config(*stores)``, the configuration of a tiny model, with stores that can transfer unless others are
    named."""

    def make(
        *stores: str,
        model: str = "llama-3.2-1b",
        secret: str = SECRET,
        seconds: float = 60.0,
        send_seconds: float = 60.0,
        **cache: Any,
    ) -> EngineConfig:
        file = tmp_path / f"secret of {secret}"
        file.write_text(secret)
        transfer = {"secret_file": str(file), "timeout_seconds": send_seconds}
        watched = WATCHED.intersection(stores)
        settings: dict[str, dict[str, Any]] = {
            "kv-tiers": {"block_tokens": BLOCK, "load_seconds": seconds},
            **{name: transfer for name in ("transfer", *watched)},
        }
        return EngineConfig(
            model=ModelOptions(path=str(tiny_model(model).path), device="cpu"),
            cache=CacheOptions(**{"max_total_tokens": 512, **cache}, kv_stores=stores or ("transfer",)),
            schedule=ScheduleOptions(chunked_prefill_size=64),
            plugins=PluginOptions(files=(str(PLUGIN),) if watched else (), settings=settings),
        )

    return make


def prompt(seed: int, length: int = 100) -> tuple[int, ...]:
    """Return a random prompt that depends on ``seed``."""
    generator = random.Random(seed)
    return tuple(generator.randrange(5, 90) for _ in range(length))


def request(tokens: Sequence[int], *, id: str = "one", **fields: Any) -> Request:
    """Return a greedy request."""
    return Request(id=id, tokens=tuple(tokens), params=SamplingParams(max_new_tokens=6, temperature=0.0), **fields)


def transfers(engine: Any) -> dict[str, Any]:
    """Return the address and the counters of an engine's transfers."""
    return dict(engine.control("info")["kv_stores"]["transfers"])


def prefill(engine: Any, receiver: Any, whole: Request, transfer: str) -> Output:
    """Compute the prompt of a request in ``engine``, and send it to ``receiver``."""
    address = transfers(receiver)["address"]
    output: Output = engine.outputs([prompt_request(whole, KVTransfer(id=transfer, address=address))])[0]
    return output


def decode(engine: Any, whole: Request, transfer: str) -> Output:
    """Serve a request in ``engine`` whose prompt another engine sends."""
    fields = {name: getattr(whole, name) for name in ("id", "tokens", "params", "salt", "logprobs")}
    output: Output = engine.outputs([Request(**fields, transfer=KVTransfer(id=transfer))])[0]
    return output


@pytest.mark.parametrize("page_size", [1, 16, 24])
def test_the_output_is_that_of_one_engine(serve: Serve, config: Any, page_size: int) -> None:
    plain, first, second = (serve(config(page_size=page_size)) for _ in range(3))
    block = -(-BLOCK // page_size) * page_size
    for seed in range(6):
        whole = request(prompt(seed, 90 + 7 * seed), logprobs=LogprobOptions(top=2))
        expected = plain.outputs([whole])[0]
        computed = prefill(first, second, whole, str(seed))
        assert (computed.sends_prompt, computed.cached_tokens) == (True, expected.cached_tokens)
        output = decode(second, whole, str(seed))
        assert (output.tokens, output.finish) == (expected.tokens, expected.finish)
        assert [entry.logprob for entry in output.logprobs] == pytest.approx(
            [entry.logprob for entry in expected.logprobs], abs=1e-4
        )
        assert output.cached_tokens == (len(whole.tokens) - 1) // block * block
        assert dict(output.loaded_tokens)["transfer"] > output.cached_tokens - 8, "prompts may begin alike"
    assert transfers(first)["sent"] == transfers(second)["received"] == 6
    for engine in (first, second):
        slots = engine.control("check")
        assert slots["free"] + slots["cached"] == slots["capacity"]


@pytest.mark.parametrize(("model", "cache"), [("deepseek-v3", {}), ("llama-3.2-1b", {"kv_dtype": "fp8_e4m3"})])
def test_latent_and_fp8_pools_are_sent(serve: Serve, config: Any, model: str, cache: dict[str, Any]) -> None:
    plain, first, second = (serve(config(model=model, **cache)) for _ in range(3))
    whole = request(prompt(1))
    prefill(first, second, whole, "a")
    output = decode(second, whole, "a")
    assert (output.tokens, output.loaded_tokens) == (plain.outputs([whole])[0].tokens, (("transfer", 96),))


@pytest.mark.parametrize("model", ["mamba-2-130m", "qwen3.5"])
def test_recurrent_states_are_sent(serve: Serve, config: Any, model: str) -> None:
    plain, first, second = (serve(config(model=model)) for _ in range(3))
    for seed in range(3):
        whole = request(prompt(seed, 150))
        assert prefill(first, second, whole, str(seed)).sends_prompt
        output = decode(second, whole, str(seed))
        assert output.tokens == plain.outputs([whole])[0].tokens
        assert dict(output.loaded_tokens)["transfer"] >= 64


def test_blocks_are_sent_before_the_prompt_is_complete(serve: Serve, config: Any) -> None:
    first, second = serve(config("noting")), serve(config())
    prefill(first, second, request(prompt(2)), "a")
    info = first.control("info")
    assert (info["steps"], info["sent"][0]) == ([64, 36], (4, ""))
    decode(second, request(prompt(2)), "a")
    assert first.control("info")["sent"] == [(4, ""), (2, ""), (0, "a")]


@pytest.mark.parametrize(
    ("model", "cache"),
    [("llama-3.2-1b", {}), ("deepseek-v3", {}), ("llama-3.2-1b", {"kv_dtype": "fp8_e4m3"}), ("gpt2", {})],
)
def test_layers_are_sent_while_later_ones_are_computed(
    serve: Serve, config: Any, model: str, cache: dict[str, Any]
) -> None:
    """No whole block is sent; each layer is computed only after the parts of the earlier layers were sent."""
    plain, second = (serve(config(model=model, **cache)) for _ in range(2))
    first = serve(config("parts", model=model, **cache))
    whole = request(prompt(1))
    expected = plain.outputs([whole])[0].tokens
    assert prefill(first, second, whole, "a").sends_prompt
    output = decode(second, whole, "a")
    assert (output.tokens, output.loaded_tokens) == (expected, (("transfer", 96),))
    sent = first.control("info")["sent_parts"]
    layers = len(set(sent))
    assert layers > 1 and len(sent) == 2 * layers, "two chunks"
    assert transfers(first)["sent_parts"] == 6 * layers


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_prompt_that_is_cached_where_it_is_computed_is_sent_too(serve: Serve, config: Any, page_size: int) -> None:
    first, whole = serve(config(page_size=page_size)), request(prompt(3))
    expected = first.outputs([whole])[0]
    for number in range(2):
        other = serve(config(page_size=page_size))
        computed = prefill(first, other, whole, str(number))
        assert computed.cached_tokens >= 96 and computed.sends_prompt
        output = decode(other, whole, str(number))
        assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("transfer", 96),))


def test_tenants_share_nothing(serve: Serve, config: Any) -> None:
    first, second = serve(config()), serve(config())
    prefill(first, second, request(prompt(4), salt="a"), "a")
    assert decode(second, request(prompt(4), salt="b"), "a").loaded_tokens == ()
    prefill(first, second, request(prompt(4), salt="a"), "c")
    assert decode(second, request(prompt(4), salt="a"), "c").loaded_tokens == (("transfer", 96),)


def test_blocks_of_other_weights_are_not_used(serve: Serve, config: Any) -> None:
    first, second, whole = serve(config(model="qwen3-0.6b")), serve(config()), request(prompt(5))
    expected = serve(config()).outputs([whole])[0]
    assert prefill(first, second, whole, "a").sends_prompt
    output = decode(second, whole, "a")
    assert (output.tokens, output.cached_tokens, transfers(second)["received"]) == (expected.tokens, 0, 1)


def test_blocks_that_do_not_arrive_are_computed(serve: Serve, config: Any) -> None:
    engine, whole = serve(config(seconds=0.2)), request(prompt(6))
    output = decode(engine, whole, "never")
    assert (output.tokens, output.cached_tokens) == (serve(config()).outputs([whole])[0].tokens, 0)
    assert (transfers(engine)["received"], transfers(engine)["late"]) == (0, 1)


def test_blocks_that_arrived_before_the_deadline_are_used(serve: Serve, config: Any) -> None:
    first, second, whole = serve(config("losing")), serve(config(seconds=0.3)), request(prompt(7))
    expected = serve(config()).outputs([whole])[0]
    prefill(first, second, whole, "a")
    output = decode(second, whole, "a")
    assert (output.tokens, output.loaded_tokens) == (expected.tokens, (("transfer", 64),))
    assert transfers(second)["late"] == 1


def test_an_engine_with_another_secret_sends_nothing(serve: Serve, config: Any) -> None:
    first, second = serve(config(secret="another secret of enough bytes", send_seconds=0.2)), serve(config(seconds=0.5))
    whole = request(prompt(8))
    expected = serve(config()).outputs([whole])[0]
    prefill(first, second, whole, "a")
    output = decode(second, whole, "a")
    assert (output.tokens, output.cached_tokens, transfers(second)["received"]) == (expected.tokens, 0, 0)
    counts = transfers(first)
    assert counts["send_errors"] >= 1 and counts["sent"] == 0
    assert not prefill(first, second, whole, "b").sends_prompt, "so that nobody waits for blocks in vain"


def test_an_engine_without_such_a_store_sends_nothing_and_waits_for_nothing(serve: Serve, config: Any) -> None:
    plain, whole = serve(config("host")), request(prompt(9))
    computed = plain.outputs([prompt_request(whole, KVTransfer(id="a", address="tcp://127.0.0.1:1"))])[0]
    assert (computed.sends_prompt, plain.control("info")["kv_stores"]["transfers"]) == (False, None)
    assert decode(plain, whole, "never").tokens == serve(config()).outputs([whole])[0].tokens


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing(serve: Serve, config: Any) -> None:
    engine, whole = serve(config()), request(prompt(10), transfer=KVTransfer(id="never"))

    async def abandon() -> None:
        outputs = engine.client.submit(whole)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(outputs), 0.3)
        await outputs.aclose()

    engine.runner.run(abandon())
    assert engine.control("info")["waiting"] == 0
    assert engine.outputs([request(prompt(11))])[0].tokens
    slots = engine.control("check")
    assert slots["free"] + slots["cached"] == slots["capacity"]


def test_many_prompts_are_sent_at_once(serve: Serve, config: Any) -> None:
    first, second = serve(config(max_total_tokens=2048)), serve(config(max_total_tokens=2048))
    wholes = [request(prompt(20 + number), id=str(number)) for number in range(12)]
    expected = [output.tokens for output in serve(config()).outputs(wholes)]
    address = transfers(second)["address"]
    computed = first.outputs([prompt_request(whole, KVTransfer(id=whole.id, address=address)) for whole in wholes])
    assert all(output.sends_prompt for output in computed)
    outputs = second.outputs(
        [request(whole.tokens, id=whole.id, transfer=KVTransfer(id=whole.id)) for whole in reversed(wholes)]
    )
    assert [output.tokens for output in reversed(outputs)] == expected
    assert {output.loaded_tokens for output in outputs} == {(("transfer", 96),)}
