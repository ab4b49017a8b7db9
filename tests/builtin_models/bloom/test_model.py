from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import BloomConfig

from sglang_plug import BuildEnv
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.bloom.model import Bloom


def bloom(**changes: Any) -> tuple[str, BloomConfig]:
    fields: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return "BloomForCausalLM", BloomConfig(**fields | changes)


CASES = {
    "bloom": bloom(),
    "bloom, number of heads not a power of two": bloom(n_head=6, hidden_size=48),
    "bloom, untied": bloom(tie_word_embeddings=False),
    "bloom, apply_residual_connection_post_layernorm": bloom(apply_residual_connection_post_layernorm=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def test_checkpoints_that_leave_the_root_out_of_names() -> None:
    _, config = bloom()
    backend = TorchAttention(Bloom.attention_shape(config), torch.device("cpu"))
    model = Bloom(config, BuildEnv(attention=backend))
    stored = transformers.BloomForCausalLM(config).transformer.state_dict()
    assert "word_embeddings.weight" in stored
    model.load_weights(stored.items())
    assert torch.equal(model.transformer.h[1].mlp.dense_4h_to_h.weight, stored["h.1.mlp.dense_4h_to_h.weight"])
