"""Bamba, Falcon-H1, Jamba and Zamba2 equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import BambaConfig, FalconH1Config, JambaConfig, PretrainedConfig, Zamba2Config

from sglang_plug import ConfigError
from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MAMBA2: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 1}
BIASES = {"attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True}
FALCON: dict[str, Any] = {
    "mamba_d_ssm": 48,
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 5.0,
    "mlp_multipliers": [0.9, 0.3],
    "key_multiplier": 0.6,
    "attention_out_multiplier": 0.7,
    "attention_in_multiplier": 1.3,
    "ssm_multipliers": [0.4, 0.25, 0.9, 0.5, 0.35],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.24,
}

JAMBA: dict[str, Any] = {
    "num_experts": 6,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 8,
}
ZAMBA: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid"],
    "num_mem_blocks": 2,
    "adapter_rank": 4,
    "n_mamba_heads": 4,
    "mamba_d_state": 8,
}


def bamba(**more: Any) -> tuple[str, PretrainedConfig]:
    return "BambaForCausalLM", BambaConfig(**{**SHAPE, **MAMBA2, "attn_layer_indices": [1], **more})


def falcon(**more: Any) -> tuple[str, PretrainedConfig]:
    return "FalconH1ForCausalLM", FalconH1Config(**{**SHAPE, **MAMBA2, **FALCON, **more})


def jamba(**more: Any) -> tuple[str, PretrainedConfig]:
    return "JambaForCausalLM", JambaConfig(**{**SHAPE, **JAMBA, **more})


def zamba2(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Zamba2ForCausalLM", Zamba2Config(**{**SHAPE, **ZAMBA, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "bamba": bamba(),
    "bamba, several attention layers": bamba(attn_layer_indices=[0, 2, 3]),
    "bamba, mamba_n_groups=2, time_step_limit, biased": bamba(mamba_n_groups=2, time_step_limit=(0.3, 0.8), **BIASES),
    "bamba tied": bamba(tie_word_embeddings=True),
    "falcon-h1": falcon(),
    "falcon-h1, norm before the gate": falcon(mamba_rms_norm=True),
    "falcon-h1, norm after the gate, mamba_n_groups=2": falcon(
        mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=2
    ),
    "falcon-h1 biased and tied": falcon(projectors_bias=True, tie_word_embeddings=True, **BIASES),
    "falcon-h1, mamba_d_ssm=None": falcon(mamba_d_ssm=None),
    "jamba": jamba(),
    "jamba without experts": jamba(num_experts=1),
    "jamba biased and tied, no convolution bias": jamba(
        mamba_proj_bias=True, mamba_conv_bias=False, tie_word_embeddings=True
    ),
    "jamba, experts in every layer, mamba_dt_rank=5": jamba(
        expert_layer_period=1, expert_layer_offset=0, mamba_dt_rank=5
    ),
    "zamba2": zamba2(),
    "zamba2, num_mem_blocks=1, use_shared_attention_adapter": zamba2(
        num_mem_blocks=1, use_shared_attention_adapter=True
    ),
    "zamba2, RoPE, use_shared_attention_adapter": zamba2(use_mem_rope=True, use_shared_attention_adapter=True),
    "zamba2, mamba_ngroups=2, biased": zamba2(mamba_ngroups=2, add_bias_linear=True),
    "zamba2, grouped-query attention, silu": zamba2(num_key_value_heads=2, hidden_act="silu"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def test_a_zamba_whose_blocks_are_not_shared_is_refused() -> None:
    with pytest.raises(ConfigError, match="tie_word_embeddings=false is not supported for Zamba2"):
        check_model(*zamba2(tie_word_embeddings=False))
