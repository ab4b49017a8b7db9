"""Llama 4 equals transformers, within one attention chunk and across several."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from packaging.version import Version
from transformers import Llama4Config, Llama4TextConfig, PretrainedConfig

from sglang_plug.testing import check_model
from sglang_plug_models.llama4.model import Llama4

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "intermediate_size_mlp": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "num_local_experts": 4,
}
STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama4(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Llama4ForCausalLM", Llama4TextConfig(**{**SHAPE, **more})


VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 8}
VISION |= {"patch_size": 4, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
MULTIMODAL = Llama4Config(text_config={**SHAPE, "attention_chunk_size": 9}, vision_config=VISION)
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "llama 4, one attention chunk": llama4(),
    "llama 4, attention_chunk_size=7": llama4(attention_chunk_size=7),
    "llama 4, attention_chunk_size=1": llama4(attention_chunk_size=1),
    "llama 4, full attention in all layers": llama4(attention_chunk_size=7, layer_types=["full_attention"] * 4),
    "llama 4, attention temperature tuning from few tokens on": llama4(
        floor_scale=5, attn_scale=0.5, attention_chunk_size=16
    ),
    "llama 4, attn_temperature_tuning=False": llama4(floor_scale=5, attn_temperature_tuning=False),
    "llama 4, full attention in every second layer": llama4(no_rope_layer_interval=2, attention_chunk_size=16),
    "llama 4, three experts in every second layer": llama4(num_experts_per_tok=3, interleave_moe_layer_step=2),
    "llama 4, use_qk_norm=False, biased": llama4(use_qk_norm=False, attention_bias=True, attention_chunk_size=9),
    "llama 4, RoPE scaling, tied": llama4(rope_parameters=STRETCHED, tie_word_embeddings=True),
    "llama 4 with images, text": ("Llama4ForConditionalGeneration", MULTIMODAL),
}
WITHOUT_REFERENCE = (
    {"llama 4 with images, text"} if Version(transformers.__version__) >= Version("5.24") else frozenset[str]()
)
"""Test cases whose class in transformers raises an ``AttributeError``."""


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    if case in WITHOUT_REFERENCE:
        pytest.skip(f"transformers {transformers.__version__} cannot run this class")
    check_model(*CASES[case])


def test_keys_are_wider_only_where_there_may_be_several_chunks() -> None:
    dims = [
        Llama4.attention_shape(CASES[case][1]).dim
        for case in ("llama 4, one attention chunk", "llama 4, attention_chunk_size=7")
    ]
    assert dims == [16, 24]
