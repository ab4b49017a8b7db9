"""RecurrentGemma equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PretrainedConfig, RecurrentGemmaConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "attention_window_size": 12,
    "block_types": ["recurrent", "attention"],
    "use_cache": False,
}


def gemma(**more: Any) -> tuple[str, PretrainedConfig]:
    return "RecurrentGemmaForCausalLM", RecurrentGemmaConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "attention in every second layer": gemma(),
    "two recurrent layers, then one attention layer": gemma(block_types=["recurrent", "recurrent", "attention"]),
    "lru_width larger than hidden_size, conv1d_width=3": gemma(lru_width=48, conv1d_width=3),
    "biased, logits_soft_cap, untied": gemma(attention_bias=True, logits_soft_cap=3.0, tie_word_embeddings=False),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
