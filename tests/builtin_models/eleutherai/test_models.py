from __future__ import annotations

from typing import Any

import pytest
from transformers import CodeGenConfig, GPTJConfig, GPTNeoConfig

from sglang_plug.testing import check_model

TOKENS: dict[str, Any] = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2}
SHARED: dict[str, Any] = {**TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "rotary_dim": 4}


def gptj(**changes: Any) -> tuple[str, GPTJConfig]:
    return "GPTJForCausalLM", GPTJConfig(**SHARED | changes)


def codegen(**changes: Any) -> tuple[str, CodeGenConfig]:
    return "CodeGenForCausalLM", CodeGenConfig(**SHARED | changes)


def gpt_neo(**changes: Any) -> tuple[str, GPTNeoConfig]:
    fields: dict[str, Any] = {
        **TOKENS,
        "hidden_size": 32,
        "num_layers": 3,
        "num_heads": 4,
        "max_position_embeddings": 128,
        "window_size": 6,
        "attention_types": [[["global", "local", "local"], 1]],
    }
    return "GPTNeoForCausalLM", GPTNeoConfig(**fields | changes)


CASES = {
    "gpt-j": gptj(),
    "gpt-j, rotary_dim equal to head_dim": gptj(rotary_dim=8),
    "gpt-j, tied, n_inner=40, relu": gptj(tie_word_embeddings=True, n_inner=40, activation_function="relu"),
    "codegen": codegen(),
    "codegen with eight heads": codegen(n_head=8, rotary_dim=2),
    "gpt-neo": gpt_neo(),
    "gpt-neo untied, intermediate_size=40": gpt_neo(tie_word_embeddings=False, intermediate_size=40),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
