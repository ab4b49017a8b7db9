"""OLMo Hybrid equals transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "pad_token_id": 0,
}
LAYERS = ["linear_attention", "full_attention", "linear_attention", "full_attention"]


def olmo(**more: Any) -> tuple[str, PretrainedConfig]:
    return "OlmoHybridForCausalLM", OlmoHybridConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "three linear attention layers, then full attention": olmo(),
    "full attention in every second layer": olmo(layer_types=LAYERS),
    "RoPE": olmo(layer_types=LAYERS, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "linear_allow_neg_eigval=False": olmo(linear_allow_neg_eigval=False),
    "two value heads per key head": olmo(linear_num_key_heads=2, linear_num_value_heads=4),
    "biased and tied": olmo(attention_bias=True, tie_word_embeddings=True),
}
TOLERANCE = 1e-3
"""Tolerance: a state's output is normalised, which amplifies rounding of small numbers.

On one of the prompts transformers is 7e-4 from its own float64 result, and we are 6e-4 from it.
"""


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case], tolerance=TOLERANCE)


class Saved(torch.nn.Module):
    """transformers' model with the weights as ``save_pretrained`` writes them: each convolution in three equal
    parts."""

    def __init__(self, model: OlmoHybridForCausalLM) -> None:
        super().__init__()
        self.model = model

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, torch.Tensor]:
        """Return the weights as they are stored in a file."""
        saved: dict[str, torch.Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            before, conv1d, after = name.partition("conv1d")
            if not conv1d:
                saved[name] = tensor
                continue
            saved |= zip((f"{before}{part}_conv1d{after}" for part in "qkv"), tensor.chunk(3), strict=True)
        return saved

    def forward(self, input_ids: torch.Tensor) -> Any:
        """Return transformers' output."""
        return self.model(input_ids=input_ids)


DEFAULTS: dict[str, Any] = {
    key: value for key, value in SHAPE.items() if key not in {"linear_key_head_dim", "linear_value_head_dim"}
}
"""Sizes of keys and values use transformers' defaults: values have twice as many channels as keys."""


@pytest.mark.parametrize("more", [{}, {"linear_key_head_dim": 8, "linear_value_head_dim": 12}], ids=["default", "odd"])
def test_checkpoints_as_transformers_saves_them(more: dict[str, Any], tmp_path: Path) -> None:
    config = OlmoHybridConfig(**DEFAULTS, **more)
    reference = Saved(OlmoHybridForCausalLM(config).eval())
    reference.model.save_pretrained(tmp_path)
    shapes = {name: tensor.shape for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    convolutions = {name: tensor.shape for name, tensor in reference.state_dict().items() if "conv1d" in name}
    assert convolutions == {name: shape for name, shape in shapes.items() if "conv1d" in name}
    check_model("OlmoHybridForCausalLM", config, tolerance=TOLERANCE, reference=reference)
