"""Mamba, Falcon-Mamba and Mamba-2 equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import FalconMambaConfig, Mamba2Config, MambaConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8}


def mamba(**more: Any) -> tuple[str, PretrainedConfig]:
    return "MambaForCausalLM", MambaConfig(**{**SHAPE, **more})


def falcon(**more: Any) -> tuple[str, PretrainedConfig]:
    return "FalconMambaForCausalLM", FalconMambaConfig(**{**SHAPE, **more})


def mamba2(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Mamba2ForCausalLM", Mamba2Config(**{**SHAPE, "num_heads": 4, "head_dim": 16, "n_groups": 1, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "mamba": mamba(),
    "mamba, expand=3": mamba(expand=3, time_step_rank=5),
    "mamba biased, not tied": mamba(use_bias=True, tie_word_embeddings=False),
    "mamba, conv_kernel=2, no convolution bias": mamba(conv_kernel=2, use_conv_bias=False),
    "falcon-mamba": falcon(),
    "falcon-mamba biased": falcon(use_bias=True, mixer_rms_eps=1e-2),
    "mamba-2": mamba2(),
    "mamba-2, n_groups=2, tied": mamba2(n_groups=2, tie_word_embeddings=True),
    "mamba-2, time_step_limit, biased": mamba2(time_step_limit=(0.3, 0.8), use_bias=True),
    "mamba-2, no convolution bias, gelu": mamba2(use_conv_bias=False, hidden_act="gelu"),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
