"""Support for checkpoints of GPTQ, AWQ and compressed-tensors, and refusals by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_plug import ConfigError, Facts, LinearScheme, Matrix, Plugins, QuantizationRequest
from sglang_plug_backends.quantization import awq, compressed_tensors, gptq

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
COMPRESSED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}},
}


def compressed(weights: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **(weights or {})}, "input_activations": None}
    groups = {"group_0": {**group, **changes.pop("group", {})}}
    return {**COMPRESSED, "config_groups": groups, **changes}


def matrix(*names: str, **changes: Any) -> Matrix:
    plain = {"name": "x", "size_in": 64, "size_out": 48, "dtype": torch.bfloat16}
    return Matrix(**{**plain, "checkpoint_names": names or ("x",), **changes})


def scheme(build: Callable[..., Any], config: Mapping[str, Any], weight: Matrix) -> LinearScheme | None:
    request = QuantizationRequest(device=torch.device("cpu"), dtype=weight.dtype, stored=config)
    result: LinearScheme | None = build(request, None).scheme(weight)
    return result


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (GPTQ, "gptq"),
        (AWQ, "awq"),
        (COMPRESSED, "compressed-tensors"),
        ({**COMPRESSED, "format": "float-quantized"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "hqq"}, None),
        (None, None),
    ],
)
def test_who_reads_what(stored: Any, name: str | None) -> None:
    plugins = Plugins.discover()
    for config in (stored, SimpleNamespace(**stored) if stored else None):
        facts = Facts(device="cpu", model=SimpleNamespace(quantization_config=config))
        assert plugins.choose("quantization", facts) == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "awq"}, "reads checkpoints whose quant_method is 'gptq', and not 'awq'"),
        ({"bits": 3}, "GPTQ weights have bits 3, which is not supported"),
        ({"bits": None}, "bits None"),
        ({"group_size": 0}, "group_size 0"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"is_marlin_format": True}, "is_marlin_format True"),
        ({"pack_dtype": "int64"}, "pack_dtype 'int64'"),
        ({"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic '.:.*down.*'"),
    ],
)
def test_gptq_of_another_kind(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gptq.read({**GPTQ, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "gptq"}, "reads checkpoints whose quant_method is 'awq', and not 'gptq'"),
        ({"bits": 8}, "AWQ weights have bits 8"),
        ({"w_bit": 3}, "w_bit 3"),
        ({"version": "gemv"}, "version 'gemv'"),
        ({"zero_point": False}, "zero_point False"),
        ({"group_size": -2}, "group_size -2"),
    ],
)
def test_awq_of_another_kind(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        awq.read({**AWQ, **change})


def test_older_names_of_awq() -> None:
    size, _ = awq.read({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})
    assert size == 64


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptq"}, "quant_method is that, and not 'gptq'"),
        (compressed(format="marlin-24"), "format 'marlin-24'"),
        (compressed(config_groups={}), "0 config_groups"),
        (compressed(group={"targets": ["Embedding"]}), "targets .'Embedding'."),
        (compressed({"num_bits": 2}), "num_bits 2"),
        (compressed({"num_bits": 4}, format="int-quantized"), "num_bits 4"),
        (compressed({"type": "float"}), "type 'float'"),
        (compressed({"strategy": "block"}), "strategy 'block'"),
        (compressed({"group_size": None}), "group_size None"),
        (compressed({"dynamic": True}), "dynamic True"),
        (compressed({"actorder": "else"}), "actorder 'else'"),
        (compressed(group={"input_activations": {"num_bits": 4, "type": "int"}}), "num_bits 4"),
        (compressed(group={"input_activations": {"num_bits": 8, "type": "float"}}), "type 'float'"),
    ],
)
def test_compressed_tensors_of_another_kind(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compressed_tensors.read(config)


def test_which_matrices() -> None:
    quantized = gptq.read({**GPTQ, "dynamic": {"-:.*shared_expert.*": {}}, "modules_to_not_convert": ["layers.0.mlp"]})
    assert quantized.selection.holds(matrix("model.layers.1.mlp.down_proj"))
    assert not quantized.selection.holds(matrix("model.layers.0.mlp.down_proj"))
    assert not quantized.selection.holds(matrix("model.layers.1.shared_expert.up_proj"))
    assert not quantized.selection.holds(matrix("lm_head", role="head"))
    assert gptq.read({**GPTQ, "lm_head": True}).selection.holds(matrix("lm_head", role="head"))
    inside = gptq.read({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"]]}).selection
    assert inside.holds(matrix("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"))
    assert not inside.holds(matrix("model.layers.0.self_attn.o_proj"))
    _, selection = awq.read({**AWQ, "modules_to_not_convert": ["gate"]})
    assert selection.holds(matrix("model.layers.0.mlp.gate_proj"))
    assert not selection.holds(matrix("model.layers.0.mlp.gate"))
    whole = compressed_tensors.read(compressed(ignore=["a.qkv_proj"])).selection
    assert not whole.holds(matrix("a.q_proj", "a.k_proj", name="a.qkv_proj"))
    named = compressed_tensors.read(compressed(group={"targets": ["re:.*down_proj", "a.b"]})).selection
    assert named.holds(matrix("x.down_proj")) and named.holds(matrix("a.b")) and not named.holds(matrix("a.c"))


@pytest.mark.parametrize(
    ("build", "config", "changes", "message"),
    [
        (gptq.build, GPTQ, {"size_in": 68}, "'x' has 68 columns: in GPTQ they must be a multiple of 8"),
        (gptq.build, GPTQ, {"part_sizes": (44, 4)}, "'x' has 44 rows: in GPTQ they must be a multiple of 8"),
        (awq.build, AWQ, {"size_in": 48}, "'x' has 48 columns: in AWQ they must be a multiple of 32"),
        (awq.build, AWQ, {"part_sizes": (44, 4)}, "'x' has 44 rows: in AWQ they must be a multiple of 8"),
        (compressed_tensors.build, COMPRESSED, {"size_in": 48}, "'x' has 48 columns: they must be a multiple of 32"),
    ],
)
def test_sizes_that_do_not_fit(build: Any, config: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme(build, config, matrix("x", **changes))


def test_tensors_of_parts() -> None:
    """The zero points of each part begin in a new word, and each part has its own order of columns."""
    fused = matrix("q", "k", size_out=50, part_sizes=(41, 9))
    result = scheme(compressed_tensors.build, compressed({"symmetric": False, "actorder": "group"}), fused)
    assert result is not None
    shapes = {name: (stored.shape, stored.dtype) for name, stored in result.stored.items()}
    assert shapes == {
        "weight_packed": ((50, 8), torch.int32),
        "weight_scale": ((50, 2), torch.float32),
        "weight_zero_point": ((6 + 2, 2), torch.int32),
        "weight_g_idx": ((2, 64), torch.int32),
    }
    assert result.stored["weight_zero_point"].part_index(1, fused.parts) == (slice(6, 8),)
    assert result.stored["weight_g_idx"].part_index(1, fused.parts) == (1,)


def is_ignored(build: Callable[..., Any], config: Mapping[str, Any]) -> Callable[[str, torch.Tensor], bool]:
    request = QuantizationRequest(device=torch.device("cpu"), dtype=torch.float32, stored=config)
    result: Callable[[str, torch.Tensor], bool] = build(request, None).is_ignored
    return result


def test_what_says_nothing() -> None:
    drop = is_ignored(gptq.build, GPTQ)
    order = torch.arange(64) // 32
    assert drop("a.g_idx", order) and not drop("a.g_idx", order.flip(0)) and not drop("a.other", order)
    assert drop("a.bias", torch.zeros(3)) and not drop("a.bias", torch.ones(3))
    assert not is_ignored(gptq.build, {**GPTQ, "desc_act": True})("a.g_idx", order)
    drop = is_ignored(awq.build, AWQ)
    assert drop("a.bias", torch.zeros(3)) and not drop("a.bias", torch.ones(3)) and not drop("a.g_idx", order)
    drop = is_ignored(compressed_tensors.build, COMPRESSED)
    assert drop("a.weight_shape", order) and drop("a.input_scale", order) and not drop("a.weight_g_idx", order)
