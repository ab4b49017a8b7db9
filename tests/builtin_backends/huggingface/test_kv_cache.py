"""FP8 settings of keys and values in a checkpoint's configuration and tensor names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import CheckpointRequest, KVScaleTensor
from sglang_plug_backends.huggingface.checkpoint import open_checkpoint

LAYER = "model.layers.3.self_attn"
STATIC: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}}
WEIGHTS = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}}
ATTENTION = {"group_0": {"targets": ["LlamaAttention"], "weights": None, "input_activations": {"num_bits": 8}}}


def opened(folder: Path, quantization: Any = None, exported: Any = None) -> Any:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (folder / "config.json").write_text(
        json.dumps({**config, **({} if quantization is None else {"quantization_config": quantization})})
    )
    if exported is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(exported))
    return open_checkpoint(CheckpointRequest(source=str(folder)))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (f"{LAYER}.k_scale", ("k",)),
        (f"{LAYER}.v_scale", ("v",)),
        (f"{LAYER}.kv_scale", ("k", "v")),
        (f"{LAYER}.k_proj.k_scale", ("k",)),
        (f"{LAYER}.v_proj.v_scale", ("v",)),
        (f"{LAYER}.qkv_proj.v_scale", ("v",)),
        (f"{LAYER}.k_proj.output_scale", ("k",)),
        (f"{LAYER}.v_proj.output_scale", ("v",)),
        (f"{LAYER}.q_scale", ()),
        (f"{LAYER}.q_proj.output_scale", ()),
    ],
)
def test_names_of_scales(name: str, parts: tuple[Any, ...], tmp_path: Path) -> None:
    assert opened(tmp_path).kv_scale(name) == KVScaleTensor(layer=LAYER, parts=parts)


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}.k_proj.weight",
        f"{LAYER}.k_proj.weight_scale",
        f"{LAYER}.k_proj.input_scale",
        f"{LAYER}.o_proj.output_scale",
        f"{LAYER}.k_scale.weight",
        f"{LAYER}.kv_b_proj.weight_scale",
        "model.layers.3.mlp.gate_proj.output_scale",
        "k_scale",
    ],
)
def test_names_of_other_tensors(name: str, tmp_path: Path) -> None:
    assert opened(tmp_path).kv_scale(name) is None


@pytest.mark.parametrize(
    ("quantization", "weights_too"),
    [
        ({**COMPRESSED, "kv_cache_scheme": STATIC}, False),
        ({**COMPRESSED, "kv_cache_scheme": STATIC, "config_groups": ATTENTION}, False),
        ({**COMPRESSED, "kv_cache_scheme": STATIC, "config_groups": WEIGHTS}, True),
        ({"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}, False),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, True),
    ],
)
def test_configurations_that_name_fp8(quantization: dict[str, Any], weights_too: bool, tmp_path: Path) -> None:
    result = opened(tmp_path, quantization)
    assert result.kv_dtype == "fp8_e4m3"
    assert (getattr(result.config, "quantization_config", None) == quantization) is weights_too
    assert bool(getattr(result.config, "quantization_config", None)) is weights_too


@pytest.mark.parametrize(
    "quantization",
    [
        None,
        {**COMPRESSED, "kv_cache_scheme": None, "config_groups": WEIGHTS},
        {"quant_method": "fp8", "activation_scheme": "dynamic", "kv_cache_scheme": "static"},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None},
    ],
)
def test_configurations_that_say_nothing(quantization: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = opened(tmp_path, quantization)
    assert result.kv_dtype is None and not caplog.records
    assert getattr(result.config, "quantization_config", None) == quantization


@pytest.mark.parametrize(
    "change",
    [{"type": "int"}, {"num_bits": 4}, {"dynamic": True}, {"symmetric": False}, {"strategy": "attn_head"}],
    ids=str,
)
def test_schemes_that_are_not_supported(
    change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = opened(tmp_path, {**COMPRESSED, "kv_cache_scheme": {**STATIC, **change}})
    assert result.kv_dtype is None and not getattr(result.config, "quantization_config", None)
    (key,) = change
    assert "not supported (kv_cache_scheme {" in caplog.text and f"'{key}': {change[key]!r}" in caplog.text


def test_an_algorithm_that_is_not_supported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert opened(tmp_path, {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}).kv_dtype is None
    assert "not supported (kv_cache_quant_algo 'NVFP4')" in caplog.text


def test_what_was_exported_next_to_the_configuration(tmp_path: Path) -> None:
    exported = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    assert opened(tmp_path, exported=exported).kv_dtype == "fp8_e4m3"
    assert opened(tmp_path, exported={"quantization": ["FP8"]}).kv_dtype is None
