"""Eight-bit matrices in the whole engine: every family, quantized checkpoints, and weight updates."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sglang_plug import ConfigError, EngineConfig, LogprobOptions, Request, RequestError, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, PluginOptions
from sglang_plug_backends.quantization import fp8, int8

DENSE = [
    "llama-3.2-1b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "mistral-7b",
    "gemma-2-2b",
    "gemma-3-1b",
    "phi-3-mini",
    "phi-4-mini",
    "olmo-2-1b",
    "gpt2",
]
MIXTURES = ["qwen1.5-moe", "qwen3-moe", "mixtral-8x7b", "deepseek-v2-lite", "deepseek-v2", "deepseek-v3"]
KEPT = ("lm_head", "kv_b_proj")
"""Matrices that are not quantized: the head by default, and expansions of latents, which attention takes apart."""

CHANNEL = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}
TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}


def config(path: Path, quantization: str = "auto", **settings: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"),
        cache=CacheOptions(max_total_tokens=1024),
        backends=BackendOptions(attention="torch", quantization=quantization),
        plugins=PluginOptions(settings={quantization: settings} if settings else {}),
    )


def logprobs(engine: Any, name: str) -> list[float]:
    """Return log-probabilities of four prompts and their outputs; one prompt has more rows than small products have."""
    draw = random.Random(3)
    requests = [
        Request(
            id=f"{name}{length}",
            tokens=tuple(draw.randrange(3, 512) for _ in range(length)),
            params=SamplingParams(max_new_tokens=4, temperature=0.0),
            logprobs=LogprobOptions(start=0),
        )
        for length in (2, 9, 40, 100)
    ]
    return [
        entry.logprob
        for output in engine.outputs(requests)
        for entry in (*output.prompt_logprobs[1:], *output.logprobs)
    ]


def matrices(reference: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the matrices of transformers' model that int8 and FP8 quantize: no head, routers or stacked experts."""
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and not name.endswith(KEPT):
            yield name, module


def rounded(model: Any, folder: Path) -> Path:
    """Write the checkpoint with every matrix quantized to eight bits and dequantized; return its folder."""
    reference = copy.deepcopy(model.reference)
    for _, module in matrices(reference):
        turned = isinstance(module, Conv1D)
        weight = module.weight.data
        whole, scale = int8.quantize(weight.T if turned else weight)
        back = whole.float() * scale[:, None]
        weight.copy_(back.T if turned else back)
    reference.save_pretrained(folder)
    return folder


def in_fp8(
    model: Any, folder: Path, quantization: dict[str, Any], *, one_scale: bool = False, repeat: bool = False
) -> Path:
    """Write the checkpoint with every matrix in FP8 and a scale for each row or for each matrix (repeated or not)."""
    folder.mkdir()
    tensors = load_file(model.path / "model.safetensors")
    for name, module in matrices(model.reference):
        weight, scale = scaled(module.weight.data, one_scale)
        tensors[f"{name}.weight"] = weight
        tensors[f"{name}.weight_scale"] = (
            scale.expand(len(weight), 1).contiguous() if repeat or not one_scale else scale
        )
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((model.path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": quantization}))
    return folder


def scaled(weight: Tensor, one_scale: bool) -> tuple[Tensor, Tensor]:
    if not one_scale:
        return fp8.quantize(weight)
    flat, scale = fp8.quantize(weight.reshape(1, -1))
    return flat.view(weight.shape), scale.reshape(1)


def chosen(engine: Any) -> tuple[str, str]:
    component = engine.info["components"]["quantization"]
    assert engine.info["quantization"] == component["name"]
    return component["name"], component["reason"]


@pytest.mark.parametrize("family", DENSE + MIXTURES)
def test_int8_is_the_model_with_rounded_weights(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, "int8"))
    assert chosen(engine) == ("int8", "named by the configuration")
    actual = logprobs(engine, "int8")
    assert actual == pytest.approx(logprobs(serve(config(rounded(model, tmp_path / "rounded"))), "rounded"), abs=2e-4)
    plain = logprobs(serve(config(model.path)), "plain")
    off = [abs(value - other) for value, other in zip(actual, plain, strict=True)]
    assert 1e-3 < max(off), "nothing was rounded"


@pytest.mark.parametrize("family", ["llama-3.2-1b", "mistral-7b", "phi-4-mini", "gemma-3-1b", "qwen3-moe"])
def test_a_checkpoint_in_fp8_is_the_one_that_is_converted(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model(family)
    quantization = CHANNEL
    if family == "qwen3-moe":
        quantization = {**CHANNEL, "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*experts"]}
    stored = serve(config(in_fp8(model, tmp_path / "stored", quantization)))
    assert chosen(stored) == ("fp8", "chosen for the checkpoint")
    converted = serve(config(model.path, "fp8"))
    assert chosen(converted) == ("fp8", "named by the configuration")
    assert logprobs(stored, "stored") == logprobs(converted, "converted")


@pytest.mark.parametrize("family", ["qwen2.5-0.5b", "phi-3-mini"])
def test_one_scale_for_a_matrix_is_that_scale_for_every_row(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model(family)
    single = serve(config(in_fp8(model, tmp_path / "one", TENSOR, one_scale=True)))
    every = serve(config(in_fp8(model, tmp_path / "every", CHANNEL, one_scale=True, repeat=True)))
    assert logprobs(single, "one") == logprobs(every, "every")


def test_the_head_is_quantized_if_that_is_asked_for(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    path = tiny_model("llama-3.2-1b").path
    without = logprobs(serve(config(path, "int8")), "without")
    assert without != logprobs(serve(config(path, "int8", head=True)), "with")


def test_weights_can_be_replaced(tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = tmp_path / "new"
    new.mkdir()
    (new / "config.json").write_text((old / "config.json").read_text())
    save_file(
        {name: tensor * 0.5 for name, tensor in load_file(old / "model.safetensors").items()}, new / "model.safetensors"
    )
    engine, fresh = serve(config(old, "int8")), serve(config(new, "int8"))
    before, expected = logprobs(engine, "before"), logprobs(fresh, "fresh")
    assert engine.control("update_weights", source=str(new))["success"]
    assert logprobs(engine, "after") == expected != before


def test_an_update_may_not_change_the_format(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model("llama-3.2-1b")
    stored = in_fp8(model, tmp_path / "stored", CHANNEL)
    engine = serve(config(stored))
    before = logprobs(engine, "before")
    with pytest.raises(RequestError, match="quantization_config"):
        engine.control("update_weights", source=str(model.path))
    assert engine.control("update_weights", source=str(stored))["success"]
    assert logprobs(engine, "after") == before


def changed(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


LAYER = "model.layers.1.self_attn.k_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all: all.pop(f"{LAYER}.weight_scale"), "unfilled.*qkv_proj.weight_scale.*'k' is missing"),
        (lambda all: all.update({f"{LAYER}.weight": torch.zeros(32, 64)}), "k_proj.weight.*expected dtype.*float8"),
        (lambda all: all.update({f"{LAYER}.weight_scale": torch.ones(1)}), r"expected shape \(.*, 1\), found \(1,\)"),
        (
            lambda all: all.update({f"{LAYER}.pre_quant_scale": torch.ones(1)}),
            "no 'model.layers.1.self_attn.qkv_proj.pre_quant_s",
        ),
    ],
)
def test_a_damaged_checkpoint_is_named(
    change: Any, message: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    path = changed(in_fp8(tiny_model("mistral-7b"), tmp_path / "stored", CHANNEL), change)
    with pytest.raises(ConfigError, match=message):
        serve(config(path))


@pytest.mark.parametrize(
    ("name", "quantization", "message"),
    [
        ("none", CHANNEL, "--quantization none: .* quantized .compressed-tensors"),
        ("int8", CHANNEL, "converts ordinary weights, .* quantized .compressed-tensors"),
        (
            "auto",
            {"quant_method": "aqlm"},
            "quantized with the method .aqlm., which no installed plugin reads .installed: awq, comp.*, fp8, "
            "gptq, int8",
        ),
        ("fp8", {"quant_method": "gptq"}, "quant_method is 'gptq'"),
        ("int4", None, "no quantization named 'int4'; did you mean 'int8'"),
    ],
)
def test_refusals(
    name: str, quantization: Any, message: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    options = config(tiny_model("mistral-7b").path, name)
    if quantization:
        model = dataclasses.replace(options.model, overrides={"quantization_config": quantization})
        options = dataclasses.replace(options, model=model)
    with pytest.raises(ConfigError, match=message):
        serve(options)


def test_a_model_without_matrices_of_ours_is_refused(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="'int8' takes none of the 0 matrices of TransformersModel"):
        serve(config(tiny_model("stablelm-2").path, "int8"))
