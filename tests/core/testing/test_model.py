from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from sglang_plug import BuildEnv, ForwardBatch, Model, PluginError, Plugins, WeightError
from sglang_plug.testing import check_model

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "LlamaForCausalLM": LlamaConfig(**SMALL),
    "Qwen2ForCausalLM": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "Qwen3ForCausalLM": Qwen3Config(**SMALL, head_dim=16),
    "MistralForCausalLM": MistralConfig(**SMALL, sliding_window=7),
}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_correct_models_pass(architecture: str) -> None:
    check_model(architecture, CONFIGS[architecture])


def llama() -> type[Model]:
    found: type[Model] = Plugins.discover().get("model", "LlamaForCausalLM").load(Model)
    return found


def broken(change: Any) -> type[Model]:
    class Broken(llama()):  # type: ignore[misc]
        def forward(self, batch: ForwardBatch) -> Tensor:
            return change(super().forward, batch)

    return Broken


def from_zero(forward: Any, batch: ForwardBatch) -> Tensor:
    batch.positions = torch.cat([torch.arange(new) for new in batch.query_lens])
    return forward(batch)


def one_after_the_other(forward: Any, batch: ForwardBatch) -> Tensor:
    """Positions run on from one sequence to the next."""
    batch.positions = torch.arange(len(batch.positions)) + batch.positions[0]
    return forward(batch)


def louder(forward: Any, batch: ForwardBatch) -> Tensor:
    return forward(batch) * 1.01


@pytest.mark.parametrize(
    ("change", "case"),
    [
        (louder, "one prompt'"),
        (from_zero, "one prompt in chunks"),
        (one_after_the_other, "prompts in one batch, then decoding"),
    ],
)
def test_broken_models_fail_and_the_case_is_named(change: Any, case: str) -> None:
    with pytest.raises(AssertionError, match=f"Broken fails '{case}"):
        check_model("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], model_class=broken(change))


def test_weights_that_do_not_fit_are_named() -> None:
    class WithMore(llama()):  # type: ignore[misc]
        def __init__(self, config: Any, env: BuildEnv) -> None:
            super().__init__(config, env)
            self.extra = nn.Linear(2, 2)

    with pytest.raises(WeightError, match=r"extra\.bias"):
        check_model("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], model_class=WithMore)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(PluginError, match="BertForMaskedLM"):
        check_model("BertForMaskedLM", CONFIGS["LlamaForCausalLM"])
