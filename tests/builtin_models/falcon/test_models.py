from __future__ import annotations

from typing import Any

import pytest
from transformers import FalconConfig

from sglang_plug.testing import check_model


def falcon(**changes: Any) -> tuple[str, FalconConfig]:
    fields: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "ffn_hidden_size": 56,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return "FalconForCausalLM", FalconConfig(**fields | changes)


CASES = {
    "falcon 7b": falcon(),
    "falcon 7b biased, untied": falcon(bias=True, tie_word_embeddings=False),
    "falcon 40b": falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon 40b, multi-head attention": falcon(new_decoder_architecture=True),
    "falcon 2, num_ln_in_parallel_attn=1": falcon(
        new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1
    ),
    "falcon, multi_query=False": falcon(multi_query=False),
    "falcon, parallel_attn=False, relu": falcon(parallel_attn=False, multi_query=False, bias=True, activation="relu"),
    "falcon with alibi": falcon(alibi=True, multi_query=False, parallel_attn=False, bias=True),
    "falcon with alibi, multi-query attention": falcon(alibi=True, num_attention_heads=6, hidden_size=48),
    "falcon, linear RoPE scaling": falcon(rope_parameters={"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
