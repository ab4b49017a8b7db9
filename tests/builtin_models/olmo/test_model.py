"""OLMo 2 equals transformers, in every variant of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Olmo2Config, PretrainedConfig
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from sglang_plug import BuildEnv, Plugins
from sglang_plug.testing import check_model
from sglang_plug_models.olmo.model import Olmo2, norm

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "olmo2": ("Olmo2ForCausalLM", Olmo2Config(**SHAPE)),
    "olmo2, grouped-query attention": ("Olmo2ForCausalLM", Olmo2Config(**SHAPE, num_key_value_heads=2)),
    "olmo2 biased, tied": ("Olmo2ForCausalLM", Olmo2Config(**SHAPE, attention_bias=True, tie_word_embeddings=True)),
}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_against_transformers(case: str, kernels: str) -> None:
    check_model(*CASES[case], kernels=kernels)


def test_norms_round_once_as_transformers_does() -> None:
    config = Olmo2Config(**SHAPE)
    backend = Plugins.discover().get("attention", "torch").load()(Olmo2.attention_shape(config), torch.device("cpu"))
    mine, theirs = norm(32, 1e-5, BuildEnv(attention=backend)).bfloat16(), Olmo2RMSNorm(32, 1e-5).bfloat16()
    x = torch.randn(50, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        theirs.weight.copy_(torch.randn(32))
        mine.weight.copy_(theirs.weight)
        assert torch.equal(mine(x), theirs(x))
