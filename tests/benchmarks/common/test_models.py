"""The benchmark's shapes are those of the models they are named after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common.models import BYTES, SHAPES, write_model


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_weights_are_counted_as_transformers_has_them(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    config = AutoConfig.from_pretrained(write_model(shape, tmp_path))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    assert sum(linear.weight.numel() for linear in linears) == shape.matmul_weights
    layer = sum(linear.weight.numel() for linear in model.model.layers[0].modules() if hasattr(linear, "in_features"))
    assert layer == shape.layer_weights
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == shape.tied
    assert (model.model.layers[0].self_attn.q_proj.bias is not None) == shape.bias


def test_sizes() -> None:
    assert SHAPES["0.5B"].matmul_weights * BYTES == pytest.approx(775e6, rel=0.005)
    assert SHAPES["1B"].matmul_weights * BYTES == pytest.approx(2.08e9, rel=0.005)
    assert SHAPES["0.5B"].kv_bytes == 24 * 2 * 2 * 64 * 2
