"""Support for FP8 checkpoints, and the choice of the matrices that are in FP8."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, Matrix
from sglang_plug_backends.quantization.fp8_checkpoint import read

GROUP: dict[str, Any] = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True},
}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "kv_cache_scheme": None,
    "ignore": ["lm_head", "re:.*mlp.gate$", "model.layers.0"],
    "config_groups": {"group_0": GROUP},
}


def matrix(*names: str, **changes: Any) -> Matrix:
    return Matrix(
        **{"name": "x", "checkpoint_names": names, "size_in": 16, "size_out": 16, "dtype": torch.bfloat16, **changes}
    )


def test_compressed_tensors() -> None:
    stored = read(COMPRESSED)
    assert not stored.one_scale
    assert stored.holds(matrix("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"))
    assert stored.holds(matrix("model.layers.10.mlp.gate_proj"))
    assert not stored.holds(matrix("model.layers.0.self_attn.o_proj"))
    assert not stored.holds(matrix("model.layers.1.mlp.gate", role="router"))
    assert not stored.holds(matrix("lm_head", role="head"))
    assert not stored.holds(matrix("transformer.h.1.attn.c_proj", unquantized=True))
    weights = {**GROUP["weights"], "strategy": "tensor"}
    assert read({**COMPRESSED, "config_groups": {"group_0": {**GROUP, "weights": weights}}}).one_scale


def test_blocks() -> None:
    stored = read({"quant_method": "fp8", "weight_block_size": [128, 64]})
    assert (stored.block, stored.scale_name, stored.one_scale) == ((128, 64), "weight_scale_inv", False)
    weights = {**GROUP["weights"], "strategy": "block", "block_structure": [128, 64]}
    stored = read({**COMPRESSED, "config_groups": {"group_0": {**GROUP, "weights": weights}}})
    assert (stored.block, stored.scale_name) == ((128, 64), "weight_scale")


def test_activations_that_stay_as_they_are() -> None:
    assert read(COMPRESSED).rounds_activations
    assert not read(
        {**COMPRESSED, "config_groups": {"group_0": {**GROUP, "input_activations": None}}}
    ).rounds_activations


def test_how_keys_and_values_are_kept_does_not_matter_to_weights() -> None:
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    assert read({**COMPRESSED, "kv_cache_scheme": scheme}) == read(COMPRESSED)


def test_parts_that_are_multiplied_together_are_kept_together() -> None:
    stored = read({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["a.q_proj", "b.q_proj", "b.k_proj"]})
    assert not stored.one_scale
    assert not stored.holds(matrix("b.q_proj", "b.k_proj"))
    with pytest.raises(ConfigError, match="leaves a.q_proj out .* not all of a.q_proj, a.k_proj"):
        stored.holds(matrix("a.q_proj", "a.k_proj"))


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_fp8(key: str) -> None:
    stored = read({"quant_method": "fp8", "activation_scheme": "dynamic", key: ["a.o_proj"]})
    assert stored.one_scale
    assert stored.holds(matrix("a.q_proj")) and not stored.holds(matrix("a.o_proj"))
    assert not stored.holds(matrix("lm_head", role="head"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("quant_method", "gptq", "quant_method is 'gptq'"),
        ("format", "pack-quantized", "format 'pack-quantized'"),
        ("config_groups", {}, "has 0 config_groups"),
        ("config_groups", {"a": GROUP, "b": GROUP}, "has 2 config_groups"),
        ("config_groups.group_0.targets", ["Embedding"], "targets .'Embedding'."),
        ("config_groups.group_0.weights.type", "int", "type 'int'"),
        ("config_groups.group_0.weights.num_bits", 4, "num_bits 4"),
        ("config_groups.group_0.weights.symmetric", False, "symmetric False"),
        ("config_groups.group_0.weights.strategy", "group", "strategy 'group'"),
        ("config_groups.group_0.weights.strategy", "block", "block_structure None"),
        ("config_groups.group_0.input_activations.num_bits", 4, "num_bits 4"),
    ],
)
def test_compressed_tensors_of_another_kind_are_refused(path: str, value: Any, message: str) -> None:
    config = copy.deepcopy(COMPRESSED)
    *folders, last = path.split(".")
    inner = config
    for name in folders:
        inner = inner[name]
    inner[last] = value
    with pytest.raises(ConfigError, match=message):
        read(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_scheme": "none"}, "activation_scheme 'none'"),
        ({"fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"weight_block_size": 128}, "weight_block_size 128"),
        ({"weight_block_size": [128, 0]}, r"weight_block_size .128, 0."),
    ],
)
def test_fp8_of_another_kind_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read({"quant_method": "fp8", **change})
