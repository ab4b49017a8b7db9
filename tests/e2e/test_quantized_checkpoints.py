"""For every supported format of quantized checkpoints, logits equal those of the dequantized weights."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import EngineConfig, LogprobOptions, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from tests.quantized import (
    Packer,
    in_awq,
    in_compressed_int8,
    in_compressed_words,
    in_fp8_blocks,
    in_gptq,
    quantize,
    write,
)

PROMPT = tuple(3 + (17 * position) % 500 for position in range(40))
NEW = 8
GROUP = 16


def shuffled(name: str, columns: int, group: int) -> Tensor:
    """Return group indices in an order that differs from layer to layer."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (torch.arange(columns) // group)[torch.randperm(columns, generator=generator)]


def gptq(name: str, weight: Tensor, *, bits: int = 4, act: str = "", less_one: bool = True, **how: Any) -> Any:
    """Quantize a matrix in GPTQ's format; return the tensors and the dequantized weight.

    ``act="own"`` gives each layer another order of columns, ``act="same"`` gives one order to all layers with as many.
    """
    index = shuffled(name if act == "own" else "", weight.shape[1], how.get("group", GROUP)) if act else None
    quantized = quantize(weight, bits=bits, index=index, **how)
    tensors = in_gptq(quantized, bits=bits, less_one=less_one)
    if name.endswith("o_proj"):  # some writers give a bias to all
        tensors["bias"] = torch.zeros(len(weight))
    return tensors, quantized.weight


def awq(name: str, weight: Tensor, **how: Any) -> Any:
    quantized = quantize(weight, **how)
    return in_awq(quantized), quantized.weight


def compressed(
    name: str, weight: Tensor, *, symmetric: bool = True, act: bool = False, bits: int = 4, **how: Any
) -> Any:
    index = shuffled(name, weight.shape[1], GROUP) if act else None
    quantized = quantize(weight, bits=bits, symmetric=symmetric, index=index, **how)
    return in_compressed_words(quantized, bits=bits, symmetric=symmetric, ordered=not act), quantized.weight


def int8(name: str, weight: Tensor, *, symmetric: bool = True) -> Any:
    quantized = quantize(weight, bits=8, group=-1, symmetric=symmetric)
    return in_compressed_int8(quantized, symmetric=symmetric), quantized.weight


def blocks(name: str, weight: Tensor, rows: int, columns: int, scale: str = "weight_scale_inv") -> Any:
    return in_fp8_blocks(weight, rows, columns, scale)


def gptq_config(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True, **changes}


def compressed_config(format: str = "pack-quantized", **weights: Any) -> dict[str, Any]:
    plain = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {**plain, **weights}, "input_activations": None}
        },
    }


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
EIGHT = {"num_bits": 8, "strategy": "channel", "group_size": None}
E4M3 = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]}
FORMATS: dict[str, tuple[dict[str, Any], Packer]] = {
    "gptq": (gptq_config(), partial(gptq, symmetric=True)),
    "gptq-asymmetric": (gptq_config(sym=False), gptq),
    "gptq-2-bits": (gptq_config(bits=2), partial(gptq, bits=2)),
    "gptq-odd-groups": (gptq_config(group_size=40), partial(gptq, group=40)),
    "gptq-odd-order": (gptq_config(desc_act=True, group_size=40), partial(gptq, group=40, act="own")),
    "gptq-8-bits": (gptq_config(bits=8), partial(gptq, bits=8)),
    "gptq-whole-rows": (gptq_config(group_size=-1), partial(gptq, group=-1)),
    "gptq-same-order": (gptq_config(desc_act=True), partial(gptq, act="same")),
    "gptq-own-order": (gptq_config(desc_act=True), partial(gptq, act="own")),
    "gptq-v2": (gptq_config(checkpoint_format="gptq_v2"), partial(gptq, less_one=False)),
    "awq": (AWQ, awq),
    "awq-whole-rows": ({**AWQ, "group_size": -1}, partial(awq, group=-1)),
    "w4a16": (compressed_config(), compressed),
    "w4a16-asymmetric": (compressed_config(symmetric=False), partial(compressed, symmetric=False)),
    "w4a16-ordered": (compressed_config(actorder="group"), partial(compressed, act=True)),
    "w8a16": (compressed_config(**EIGHT), partial(compressed, bits=8, group=-1)),
    "w8a8": (compressed_config("int-quantized", **EIGHT), int8),
    "w8a8-asymmetric": (compressed_config("int-quantized", **EIGHT, symmetric=False), partial(int8, symmetric=False)),
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, partial(blocks, rows=32, columns=32)),
    "fp8-odd-blocks": ({"quant_method": "fp8", "weight_block_size": [48, 40]}, partial(blocks, rows=48, columns=40)),
    "fp8-compressed-blocks": (
        compressed_config("float-quantized", **E4M3),
        partial(blocks, rows=32, columns=32, scale="weight_scale"),
    ),
}
READERS = {"w4": "compressed-tensors", "w8": "compressed-tensors", "fp": "fp8", "gp": "gptq", "aw": "awq"}


def config(path: Path, dtype: str = "float32", kernels: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype=dtype),
        cache=CacheOptions(max_total_tokens=1024),
        backends=BackendOptions(attention="torch", kernels=kernels),
    )


def answer(engine: Any) -> tuple[list[float], list[int]]:
    """Return the log-probabilities of the prompt's tokens but the first, and the generated tokens."""
    params = SamplingParams(max_new_tokens=NEW, temperature=0.0)
    (output,) = engine.outputs([Request(id="x", tokens=PROMPT, params=params, logprobs=LogprobOptions(start=0))])
    return [entry.logprob for entry in output.prompt_logprobs[1:]], list(output.tokens)


@torch.inference_mode()
def expected(model: Any) -> tuple[list[float], list[int]]:
    """Return log-probabilities and tokens of transformers for the same prompt."""
    tokens = list(PROMPT)
    for _ in range(NEW):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    logits = model(torch.tensor([tokens])).logits[0, : len(PROMPT) - 1].log_softmax(-1)
    return logits.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0].tolist(), tokens[len(PROMPT) :]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("family", ["qwen2.5-0.5b", "mistral-7b"])
def test_logits_are_those_of_what_it_stands_for(
    format: str, family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = FORMATS[format]
    reference = write(tiny_model(family), tmp_path / "stored", described, pack)
    engine = serve(config(tmp_path / "stored"))
    assert engine.info["quantization"] == READERS[format[:2]]
    actual, tokens = answer(engine)
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize("format", ["gptq-own-order", "awq", "w4a16-asymmetric", "w8a8", "fp8-blocks"])
def test_parts_that_the_checkpoint_has_in_one(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    test_logits_are_those_of_what_it_stands_for(format, "phi-3-mini", tiny_model, serve, tmp_path)


@pytest.mark.parametrize("format", ["gptq", "w4a16"])
def test_a_head_in_four_bits(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = FORMATS[format]
    described = {**described, "lm_head": True, "ignore": []}
    reference = write(tiny_model("mistral-7b"), tmp_path / "stored", described, pack, head=True)
    actual, tokens = answer(serve(config(tmp_path / "stored")))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


ROUTERS = [f"model.layers.{number}.mlp.gate" for number in range(3)]
MIXTURES = {
    "gptq": (gptq_config(), partial(gptq, symmetric=True)),
    "gptq-own-order": (gptq_config(desc_act=True), partial(gptq, act="own")),
    "awq": ({**AWQ, "group_size": 8, "modules_to_not_convert": ["gate"]}, partial(awq, group=8)),
    "fp8-blocks": (
        {"quant_method": "fp8", "weight_block_size": [32, 32], "modules_to_not_convert": ROUTERS},
        partial(blocks, rows=32, columns=32),
    ),
}


@pytest.mark.parametrize("format", MIXTURES)
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v3"])
def test_experts_and_latents(
    format: str, family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = MIXTURES[format]
    reference = write(tiny_model(family), tmp_path / "stored", described, pack)
    actual, tokens = answer(serve(config(tmp_path / "stored")))
    logprobs, continuation = expected(reference)
    assert actual == pytest.approx(logprobs, abs=3e-4)
    assert tokens == continuation


@pytest.mark.parametrize("format", [name for name in FORMATS if "odd" not in name])
@pytest.mark.parametrize("kernels", ["auto", "cpu"])
def test_bfloat16_is_near(
    format: str, kernels: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    described, pack = FORMATS[format]
    reference = write(tiny_model("llama-3.2-1b"), tmp_path / "stored", described, pack)
    actual, _ = answer(serve(config(tmp_path / "stored", "bfloat16", kernels)))
    logprobs, _ = expected(reference)
    off = [abs(value - other) for value, other in zip(actual, logprobs, strict=True)]
    assert sum(off) / len(off) < 0.05 and max(off) < 0.25, (sum(off) / len(off), max(off))


@pytest.mark.parametrize("format", ["gptq", "awq", "w4a16-asymmetric", "w8a8", "fp8-blocks"])
def test_random_weights_in_a_format(
    format: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    """``--load-format dummy`` creates random weights in the format of a quantized checkpoint, for benchmarks."""
    options = config(tiny_model("llama-3.2-1b").path)
    overrides = {"quantization_config": FORMATS[format][0]}
    model = dataclasses.replace(options.model, load_format="dummy", overrides=overrides)
    actual, tokens = answer(serve(dataclasses.replace(options, model=model)))
    assert len(actual) == len(PROMPT) - 1 and len(tokens) == NEW
