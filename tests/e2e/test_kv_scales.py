"""Scales of an FP8 KV pool in checkpoints: without them, keys and values of this model exceed the range of e4m3."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sglang_plug import ConfigError, EngineConfig, LogprobOptions, Request, RequestError, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from sglang_plug_backends.quantization import fp8

KEYS, VALUES = 600.0, 3000.0
"""Factors of keys and values; queries and outputs are divided by them, so that the model stays the same."""
PROMPTS = [
    [(7 * position * position + 3 * start) % 509 + 3 for position in range(length)]
    for start, length in ((1, 40), (5, 64))
]
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "kv_cache_scheme": STATIC}
MODELOPT = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}
NEAR, FAR = 0.25, 1.0
"""Bounds of mean errors of log-probabilities, which are larger with random weights."""
Name = Callable[[str, str], str]
"""Function from a layer and ``k`` or ``v`` to the name of the scale."""


def attention_scale(layer: str, part: str) -> str:
    return f"{layer}.self_attn.{part}_scale"


NAMES: dict[str, Name] = {
    "of the attention": attention_scale,
    "ModelOpt's": lambda layer, part: f"{layer}.self_attn.{part}_proj.{part}_scale",
    "older compressed-tensors'": lambda layer, part: f"{layer}.self_attn.{part}_proj.output_scale",
    "one for both": lambda layer, part: f"{layer}.self_attn.kv_scale",
}


def magnify(tensors: dict[str, Tensor], keys: float = KEYS, values: float = VALUES) -> None:
    """Make keys and values larger in place, without a change of the outputs."""
    factors = {"q_proj": 1 / keys, "k_proj": keys, "v_proj": values}
    for name, tensor in tensors.items():
        module = name.split(".")[-2]
        if module in factors:
            tensor *= factors[module]
        elif module == "o_proj" and name.endswith("weight"):
            tensor /= values


def greatest(model: Any, part: str) -> dict[str, float]:
    """Return for each layer the greatest key (before RoPE) or value on the prompts of the test."""
    maxima: dict[str, float] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Tensor) -> None:
            maxima[name] = max(maxima.get(name, 0.0), float(output.abs().max()))

        return hook

    handles = [
        module.register_forward_hook(note(name.removesuffix(f".self_attn.{part}_proj")))
        for name, module in model.reference.named_modules()
        if name.endswith(f"self_attn.{part}_proj")
    ]
    for prompt in PROMPTS:
        with torch.inference_mode():
            model.reference(torch.tensor([list(prompt)]))  # not ``model.logprobs``, which may be cached
    for handle in handles:
        handle.remove()
    assert len(maxima) == 3
    return maxima


def checkpoint(
    model: Any, folder: Path, name: Name | None, quantization: dict[str, Any] | None = None, times: float = 1.0
) -> Path:
    """Write the model with large keys and values and scales called ``name``, which are multiplied by ``times``."""
    folder.mkdir()
    tensors = {key: tensor.clone() for key, tensor in load_file(model.path / "model.safetensors").items()}
    magnify(tensors)
    for part, factor in (("k", 1.5 * KEYS), ("v", VALUES)) if name is not None else ():
        for layer, largest in greatest(model, part).items():
            assert name is not None
            scale = torch.tensor([times * largest * factor / 448])
            key = name(layer, part)
            tensors[key] = torch.maximum(tensors[key], scale) if key in tensors else scale
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((model.path / "config.json").read_text())
    extra = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps({**settings, **extra}))
    return folder


def config(path: Path, kv_dtype: str = "fp8_e4m3", impl: str = "auto", attention: str = "torch") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32", impl=impl),
        cache=CacheOptions(kv_dtype=kv_dtype, max_total_tokens=1024),
        schedule=ScheduleOptions(chunked_prefill_size=16),  # so that most of a context is read from the pool
        backends=BackendOptions(attention=attention, grammar="none"),
    )


def error(engine: Any, model: Any, label: str = "a") -> float:
    """Return the mean error of log-probabilities of prompt tokens, relative to transformers in float32."""
    requests = [
        Request(
            id=f"{label}{index}",
            tokens=tuple(prompt),
            params=SamplingParams(max_new_tokens=1, temperature=0.0),
            logprobs=LogprobOptions(start=0),
        )
        for index, prompt in enumerate(PROMPTS)
    ]
    off = [
        abs(mine.logprob - theirs)
        for prompt, output in zip(PROMPTS, engine.outputs(requests), strict=True)
        for mine, theirs in zip(output.prompt_logprobs[1:], model.logprobs(prompt), strict=True)
    ]
    return sum(off) / len(off)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.replace(" ", "-"))
def test_with_scales_it_is_near_and_without_it_is_not(
    name: str, tiny_model: Any, serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("llama-3.2-1b")
    caplog.set_level(logging.INFO, "sglang_plug")
    scaled = error(serve(config(checkpoint(model, tmp_path / "scaled", NAMES[name]))), model)
    assert "KV cache scales: from the checkpoint (model.layers.0.self_attn." in caplog.text
    assert "3 of 3 layers" in caplog.text
    caplog.clear()
    plain = error(serve(config(checkpoint(model, tmp_path / "plain", None))), model)
    assert "the checkpoint has none, all are 1" in caplog.text
    print(name, scaled, plain)
    assert 0.001 < scaled < NEAR < FAR < plain


@pytest.mark.parametrize("quantization", [COMPRESSED, MODELOPT], ids=lambda quantization: quantization["quant_method"])
def test_auto_follows_the_checkpoint(
    quantization: dict[str, Any], tiny_model: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model("llama-3.2-1b")
    engine = serve(config(checkpoint(model, tmp_path / "x", attention_scale, quantization), "auto"))
    assert engine.info["kv_cache_dtype"] == "fp8_e4m3"
    assert engine.info["quantization"] is None
    assert 0.001 < error(engine, model) < NEAR


@pytest.mark.parametrize(("quantization", "kv_dtype"), [(None, "auto"), (COMPRESSED, "float32")])
def test_a_pool_that_is_not_fp8_ignores_them(
    quantization: dict[str, Any] | None,
    kv_dtype: str,
    tiny_model: Any,
    serve: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = tiny_model("llama-3.2-1b")
    caplog.set_level(logging.INFO, "sglang_plug")
    engine = serve(config(checkpoint(model, tmp_path / "x", attention_scale, quantization), kv_dtype))
    assert engine.info["kv_cache_dtype"] == "float32"
    assert "self_attn.k_scale, …) are not used: keys and values are kept in float32 (--kv-cache-dtype)" in caplog.text
    assert error(engine, model) < 1e-3


FAMILIES = [
    "llama-3.2-1b",
    "qwen2.5-0.5b",
    "qwen3-0.6b",
    "mistral-7b",
    "qwen1.5-moe",
    "qwen3-moe",
    "mixtral-8x7b",
    "deepseek-v2",
    "gemma-2-2b",
    "gemma-3-1b",
    "phi-4-mini",
    "olmo-2-1b",
    "gpt2",
    "starcoder2-3b",
    "granite-3-2b",
    "command-r",
    "stablelm-2",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_finds_its_layers(
    family: str, tiny_model: Any, serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(family)
    layers = [name for name, module in model.reference.named_modules() if hasattr(module, "layer_idx")]
    attending = [name for name in layers if name.endswith(("attn", "attention"))]
    tensors = load_file(model.path / "model.safetensors")
    for name in attending:
        tensors.update({f"{name}.k_scale": torch.tensor(0.5), f"{name}.v_scale": torch.tensor(0.25)})
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((model.path / "config.json").read_text())
    caplog.set_level(logging.INFO, "sglang_plug")
    assert error(serve(config(tmp_path)), model) < 2 * NEAR
    count = len(attending)
    assert f"{count} of {count} layers. Keys: 0.5 to 0.5, values: 0.25 to 0.25" in caplog.text.replace(
        "values: 0.5 to 0.5",
        "values: 0.25 to 0.25",  # latent attention has one scale for both
    )


def test_transformers_code_has_them_too(tiny_model: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    model = tiny_model("qwen2.5-0.5b")
    scaled = serve(config(checkpoint(model, tmp_path / "scaled", attention_scale), impl="transformers"))
    assert 0.001 < error(scaled, model) < NEAR
    near = serve(config(tiny_model("starcoder2-3b").path, impl="transformers"))
    assert 0.001 < error(near, tiny_model("starcoder2-3b"), "b") < NEAR
    with pytest.raises(ConfigError, match="off by .* kept in float8_e4m3fn, perhaps without scales that fit"):
        serve(config(checkpoint(model, tmp_path / "plain", None), impl="transformers"))


def test_one_scale_for_latents_that_are_keys_and_values(
    tiny_model: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    """A checkpoint of latent attention with large latents, and accordingly small up-projections, needs the scale."""
    model = tiny_model("deepseek-v2-lite")
    near = error(serve(config(model.path)), model)

    def served(folder: str, scales: bool) -> Any:
        path = tmp_path / folder
        path.mkdir()
        tensors = {key: tensor.clone() for key, tensor in load_file(model.path / "model.safetensors").items()}
        for name in list(tensors):
            if name.endswith("kv_a_layernorm.weight"):
                tensors[name] *= 2.0**12
                layer = name.removesuffix(".kv_a_layernorm.weight")
                if scales:
                    tensors.update({f"{layer}.k_scale": torch.tensor(64.0), f"{layer}.v_scale": torch.tensor(99.0)})
            elif name.endswith("kv_b_proj.weight"):
                tensors[name] /= 2.0**12
        save_file(tensors, path / "model.safetensors")
        (path / "config.json").write_text((model.path / "config.json").read_text())
        return serve(config(path))

    scaled, plain = error(served("scaled", True), model), error(served("plain", False), model)
    print(near, scaled, plain)
    assert 0.001 < scaled < NEAR < FAR < plain


def test_together_with_weights_in_fp8(tiny_model: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    model = tiny_model("llama-3.2-1b")
    scheme = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**scheme, "strategy": "channel", "dynamic": False},
        "input_activations": {**scheme, "strategy": "token", "dynamic": True},
    }
    quantization = {
        **COMPRESSED,
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    path = checkpoint(model, tmp_path / "x", attention_scale, quantization)
    tensors = load_file(path / "model.safetensors")
    for name in [key for key in tensors if key.endswith("_proj.weight")]:
        tensors[name], tensors[f"{name}_scale"] = fp8.quantize(tensors[name])
    save_file(tensors, path / "model.safetensors")
    engine = serve(config(path, "auto"))
    assert (engine.info["kv_cache_dtype"], engine.info["quantization"]) == ("fp8_e4m3", "fp8")
    exact = serve(config(path, "float32"))
    print(error(engine, model), error(exact, model))
    assert abs(error(engine, model, "b") - error(exact, model, "b")) < NEAR


def test_an_update_brings_its_own(tiny_model: Any, serve: Callable[..., Any], tmp_path: Path) -> None:
    model = tiny_model("llama-3.2-1b")
    right = checkpoint(model, tmp_path / "right", attention_scale)
    none, coarse = checkpoint(model, tmp_path / "none", None), checkpoint(model, tmp_path / "coarse", attention_scale)
    tensors = load_file(coarse / "model.safetensors")
    tensors["model.layers.1.self_attn.v_scale"] = torch.tensor([-1.0])
    save_file(tensors, coarse / "model.safetensors")
    engine = serve(config(right))
    near = error(engine, model, "a")
    assert near < NEAR
    assert engine.control("update_weights", source=str(none))["success"]
    assert error(engine, model, "b") > FAR
    with pytest.raises(RequestError, match="'model.layers.1.self_attn.v_scale' is -1, which is no scale"):
        engine.control("update_weights", source=str(coarse))
    assert error(engine, model, "c") > FAR
    assert engine.control("update_weights", source=str(right))["success"]
    assert error(engine, model, "d") == near
