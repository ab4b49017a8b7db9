"""Outputs of several tensor-parallel ranks equal those of one rank and of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from sglang_plug import ConfigError, EngineConfig, EngineError, LogprobOptions, Request, RequestError, SamplingParams
from sglang_plug.config import (
    BackendOptions,
    CacheOptions,
    ModelOptions,
    ParallelOptions,
    PluginOptions,
    ScheduleOptions,
    SpeculativeOptions,
)
from tests import faulty_rank_plugin

from .test_update_weights import copy_of

FAULTY = PluginOptions(files=(str(faulty_rank_plugin.__file__),))

SHARED = [
    ("llama-3.2-1b", 2),
    ("llama-3.2-1b", 4),  # more ranks than heads with keys and values
    ("llama-3.2-1b", 8),
    ("qwen2.5-0.5b", 2),
    ("qwen3-0.6b", 2),
    ("mistral-7b", 2),
    ("qwen1.5-moe", 2),
    ("qwen3-moe", 2),
    ("mixtral-8x7b", 4),
    ("gemma-2-2b", 2),
    ("gemma-3-1b", 4),
    ("phi-3-mini", 2),
    ("phi-4-mini", 2),
    ("olmo-2-1b", 2),
    ("olmo-2-1b", 4),
    ("deepseek-v2-lite", 2),
    ("deepseek-v3", 4),
    ("gpt2", 2),
    ("gpt-oss-20b", 2),
    ("glm-4.5-air", 2),
    ("llama-4-scout", 2),
]
NEW_TOKENS = 8


def prompts() -> list[list[int]]:
    """Return prompts, some of which are longer than a chunk, and some of which share a prefix."""
    draw = random.Random(5)
    shared = [draw.randrange(3, 512) for _ in range(40)]
    return [shared + [draw.randrange(3, 512) for _ in range(length)] for length in (1, 9, 30)] + [[7], [8, 9, 10]]


def requests(prefix: str, **more: Any) -> list[Request]:
    params = SamplingParams(max_new_tokens=NEW_TOKENS, temperature=0.0)
    return [
        Request(id=f"{prefix}-{index}", tokens=tuple(tokens), params=params, logprobs=LogprobOptions(**more))
        for index, tokens in enumerate(prompts())
    ]


def config(path: Path, size: int, executor: str = "threads", *, pool: int = 2048, **backends: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=pool),
        schedule=ScheduleOptions(chunked_prefill_size=16, max_running_requests=8),
        backends=BackendOptions(**{"attention": "torch", "kernels": "torch", **backends}),
        parallel=ParallelOptions(tp_size=size, executor=executor),
    )


def check(model: Any, engine: Any, prefix: str) -> list[Any]:
    """Check that tokens and log-probabilities, those of prompts included, equal those of transformers."""
    outputs = engine.outputs(requests(prefix, start=0, ranks=True))
    for tokens, output in zip(prompts(), outputs, strict=True):
        assert output.finish is not None and output.finish.reason == "length", output
        assert list(output.tokens) == model.greedy(tokens, NEW_TOKENS, output.tokens)
        logprobs = model.logprobs([*tokens, *output.tokens])
        actual = [entry.logprob for entry in (*output.prompt_logprobs[1:], *output.logprobs)]
        assert actual == pytest.approx(logprobs, abs=1e-4)
        ranks = [entry.rank for entry in (*output.prompt_logprobs[1:], *output.logprobs)]
        possible = model.ranks([*tokens, *output.tokens])
        assert all(rank in some for rank, some in zip(ranks, possible, strict=True))
    return outputs


@pytest.mark.parametrize(("family", "size"), SHARED)
def test_equals_transformers(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], family: str, size: int
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, size))
    assert engine.info["tp_size"] == size
    assert engine.info["components"]["executor"]["name"] == "threads"
    check(model, engine, "cold")
    generated = engine.outputs([Request(id="warm", tokens=tuple(prompts()[2]), params=requests("x")[0].params)])
    assert list(generated[0].tokens) == model.greedy(prompts()[2], NEW_TOKENS, generated[0].tokens)
    assert generated[0].cached_tokens >= 60, "worker ranks keep what rank 0 has in its cache"


def test_processes(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    model = tiny_model("qwen3-0.6b")
    engine = serve(config(model.path, 2, "processes"))
    check(model, engine, "processes")


def test_short_of_slots(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    """Sequences that are retracted for lack of slots and computed again have the same outputs."""
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(model.path, 2, pool=100))
    check(model, engine, "short")


def test_sampled_tokens_are_those_of_one_rank(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    params = SamplingParams(max_new_tokens=12, temperature=1.0, top_p=0.9, frequency_penalty=0.3, seed=11)
    batch = [Request(id=str(index), tokens=tuple(tokens), params=params) for index, tokens in enumerate(prompts())]
    path = tiny_model("qwen3-0.6b").path
    one_rank, two_ranks = (serve(config(path, size)).outputs(batch) for size in (1, 2))
    assert [output.tokens for output in one_rank] == [output.tokens for output in two_ranks]


def test_with_drafts(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    """Outputs with drafts are right although other sequences reuse the slots of rejected drafts on both ranks."""
    model = tiny_model("llama-3.2-1b")
    engine = serve(replace(config(model.path, 2), speculative=SpeculativeOptions(algorithm="ngram")))
    prompt = tuple([5, 6, 7, 8] * 6)
    params = SamplingParams(max_new_tokens=40, temperature=0.0)
    outputs = engine.outputs([Request(id=str(index), tokens=(9, *prompt[index:]), params=params) for index in range(4)])
    for index, output in enumerate(outputs):
        assert list(output.tokens) == model.greedy((9, *prompt[index:]), 40, output.tokens)


def test_new_weights_serve(tiny_model: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = copy_of(old, tmp_path / "new")
    batch = requests("x", start=0)[:1]
    expected = serve(config(new, 1)).outputs(batch)[0]
    engine = serve(config(old, 2))
    before = engine.outputs(batch)[0]
    assert engine.control("update_weights", source=str(new))["success"]
    after = engine.outputs(batch)[0]
    assert after.tokens == expected.tokens != before.tokens
    with pytest.raises(RequestError, match="repository not found"):
        engine.control("update_weights", source=str(tmp_path / "nowhere"))
    assert engine.outputs(batch)[0].tokens == after.tokens


def test_all_ranks_take_new_weights_or_none(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = copy_of(old, tmp_path / "new")
    plain = config(old, 2)
    model = replace(plain.model, load_format="full-on-rank-1")
    engine = serve(replace(plain, model=model, plugins=FAULTY))
    batch = requests("x", start=0)[:1]
    before = engine.outputs(batch)[0]
    (new / faulty_rank_plugin.FULL).touch()
    with pytest.raises(RequestError, match="another rank could not"):
        engine.control("update_weights", source=str(new))
    assert engine.outputs(batch)[0].tokens == before.tokens
    (new / faulty_rank_plugin.FULL).unlink()
    assert engine.control("update_weights", source=str(new))["success"]
    assert engine.outputs(batch)[0].tokens != before.tokens


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_the_checkpoint_has_although_it_is_tied(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], tmp_path: Path, same: bool
) -> None:
    """If the stored output head differs from the embedding, it is used and sharded between the ranks."""
    path = copy_of(tiny_model("llama-3.2-1b").path, tmp_path / "model")
    stored = load_file(path / "model.safetensors")
    embedding = stored["model.embed_tokens.weight"]
    stored["lm_head.weight"] = embedding.clone() if same else embedding.flip(0).contiguous()
    save_file(stored, path / "model.safetensors")
    logprobs = []
    for size in (1, 4):
        outputs = serve(config(path, size)).outputs(requests("x", start=0))
        logprobs.append([entry.logprob for output in outputs for entry in output.prompt_logprobs[1:]])
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


def test_a_rank_that_fails_ends_the_engine(tiny_model: Callable[[str], Any], serve: Callable[..., Any]) -> None:
    """The other ranks do not wait for the failed one: the engine raises an error."""
    plain = config(tiny_model("llama-3.2-1b").path, 2, attention="broken-on-rank-1")
    engine = serve(replace(plain, plugins=FAULTY))
    with pytest.raises(EngineError, match="rank 1 failed: RuntimeError: its memory is gone|BrokenBarrierError"):
        engine.outputs(requests("x"))


@pytest.mark.parametrize("quantization", ["int8"])
def test_quantized(tiny_model: Callable[[str], Any], serve: Callable[..., Any], quantization: str) -> None:
    """Each rank has its own scales, so outputs are close to those of a single rank but not equal."""
    model = tiny_model("qwen3-0.6b")
    logprobs = []
    for size in (1, 2):
        outputs = serve(config(model.path, size, quantization=quantization)).outputs(requests("near", start=0))
        logprobs.append([entry.logprob for output in outputs for entry in output.prompt_logprobs[1:]])
    assert logprobs[0] == pytest.approx(logprobs[1], abs=0.5)
    assert sum(abs(value - other) for value, other in zip(*logprobs, strict=True)) / len(logprobs[0]) < 0.05


@pytest.mark.parametrize(
    ("family", "size", "message"),
    [
        ("bloom-560m", 2, r"--tp-size 2: several ranks cannot share model 'BloomForCausalLM'.*; leave it out"),
        ("qwen2.5-0.5b", 4, r"--tp-size 4: the model's 14 attention heads, 2 of them with keys .* choose a number"),
        ("mixtral-8x7b", 0, r"--tp-size must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_shared(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], family: str, size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(config(tiny_model(family).path, size))
