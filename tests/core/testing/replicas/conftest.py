"""Fixtures of deployment tests: the model of their engines."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose steps take a millisecond, with a long context."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    folder = tmp_path_factory.mktemp("llama")
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    return str(folder)
