from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from sglang_plug import AttentionShape, BuildEnv, ForwardBatch, Model, PluginError, Plugins, WeightError
from sglang_plug.layers import Embedding, ParallelLMHead
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
    actual: type[Model] = Plugins.discover().get("model", "LlamaForCausalLM").load(Model)
    return actual


def broken(change: Any) -> type[Model]:
    class Broken(llama()):  # type: ignore[misc]
        def forward(self, batch: ForwardBatch) -> Tensor:
            return change(super().forward, batch)

    return Broken


def from_zero(forward: Any, batch: ForwardBatch) -> Tensor:
    batch.positions = torch.cat([torch.arange(new) for new in batch.query_lens])
    return forward(batch)


def one_after_the_other(forward: Any, batch: ForwardBatch) -> Tensor:
    """Compute positions that continue from one sequence to the next."""
    batch.positions = torch.arange(len(batch.positions)) + batch.positions[0]
    return forward(batch)


def louder(forward: Any, batch: ForwardBatch) -> Tensor:
    return forward(batch) * 1.01


def wrapped(forward: Any, batch: ForwardBatch) -> Tensor:
    """Compute positions that begin again after 300 tokens."""
    batch.positions = batch.positions % 300
    return forward(batch)


def mixed(forward: Any, batch: ForwardBatch) -> Tensor:
    """Compute rows that depend on the other rows of the step."""
    hidden = forward(batch)
    return hidden - 0.1 * hidden.mean(0)


def lost_when_alone(forward: Any, batch: ForwardBatch) -> Tensor:
    """Return NaN for a batch of a single row, as in decoding one sequence."""
    hidden = forward(batch)
    return hidden * torch.nan if len(hidden) == 1 else hidden


def shifted_store(forward: Any, batch: ForwardBatch) -> Tensor:
    """Store the keys and values of the first two tokens in each other's slots."""
    if len(batch.slots) > 1:
        batch.slots = torch.cat([batch.slots[:2].flip(0), batch.slots[2:]])
    return forward(batch)


def other_token(forward: Any, batch: ForwardBatch) -> Tensor:
    """Replace the last token of a batch by its first token if there are several sequences."""
    if len(batch.query_lens) > 1:
        batch.input_ids = torch.cat([batch.input_ids[:-1], batch.input_ids[:1]])
    return forward(batch)


def written(forward: Any, batch: ForwardBatch) -> Tensor:
    """Overwrite the positions of the batch after the forward pass."""
    hidden = forward(batch)
    batch.positions.zero_()
    return hidden


def raises_for_batches(forward: Any, batch: ForwardBatch) -> Tensor:
    if len(batch.query_lens) > 1:
        raise ValueError("one at a time")
    return forward(batch)


@pytest.mark.planted_bug("model")
@pytest.mark.parametrize(
    ("change", "case"),
    [
        (mixed, "one prompt'"),
        (lost_when_alone, "one prompt in chunks|token by token"),
        (shifted_store, "prompts in one batch, then decoding"),
        (other_token, "prompts of different lengths in one batch"),
        (raises_for_batches, "prompts of different lengths in one batch': raised ValueError: one at a time"),
        (louder, "one prompt'"),
        (written, "one prompt': raised ValueError: the model wrote to the batch's positions"),
        (from_zero, "one prompt in chunks"),
        (one_after_the_other, "prompts in one batch, then decoding"),
    ],
)
def test_broken_models_fail_and_the_case_is_named(change: Any, case: str) -> None:
    with pytest.raises(AssertionError, match=f"Broken fails '({case})"):
        check_model("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], model_class=broken(change))


@pytest.mark.planted_bug("model")
def test_a_model_that_is_wrong_only_in_long_prompts_fails() -> None:
    config = LlamaConfig(**{**SMALL, "max_position_embeddings": 1024})
    check_model("LlamaForCausalLM", config)
    with pytest.raises(AssertionError, match="Broken fails 'a long prompt in chunks"):
        check_model("LlamaForCausalLM", config, model_class=broken(wrapped))


def load_what_is_there(model: Any, load: Any, weights: Any) -> None:
    with contextlib.suppress(WeightError):
        load(weights)


def count_layers(model: Any, load: Any, weights: Any) -> None:
    """Number layers in the order in which their tensors arrive, so that other files exchange them."""
    numbers: dict[str, str] = {}
    renamed = []
    for name, tensor in weights:
        parts = name.split(".")
        if "layers" in parts:
            index = parts.index("layers") + 1
            parts[index] = numbers.setdefault(parts[index], str(len(numbers)))
        renamed.append((".".join(parts), tensor))
    load(renamed)


@pytest.mark.planted_bug("model")
@pytest.mark.parametrize(
    ("change", "case"),
    [
        (load_what_is_there, "a checkpoint without model.layers.1.mlp.down_proj.weight': it is accepted"),
        (count_layers, "weights in reverse order': sequence 0: 48 of 48 tokens are wrong"),
    ],
)
def test_models_that_load_weights_wrongly_fail(change: Any, case: str) -> None:
    class Broken(llama()):  # type: ignore[misc]
        def load_weights(self, weights: Any) -> None:
            change(self, super().load_weights, weights)

    with pytest.raises(AssertionError, match=f"Broken fails '{case}"):
        check_model("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], model_class=Broken)


@pytest.mark.planted_bug("model")
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


class Bigram(Model):
    """A model whose next token depends on the last token alone."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.embed = Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = ParallelLMHead(config.hidden_size, config.vocab_size, env)

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        return AttentionShape(heads=1, kv_heads=1, dim=1, layers=1)

    def forward(self, batch: ForwardBatch) -> Tensor:
        return self.embed(batch.input_ids)

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


class Loud(Bigram):
    def forward(self, batch: ForwardBatch) -> Tensor:
        return super().forward(batch) * 1.1


class PlainBigram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lm_head = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False)

    def forward(self, input_ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.embed(input_ids)))


BIGRAM = SimpleNamespace(vocab_size=30, hidden_size=8)


def test_a_model_that_transformers_lacks_is_compared_with_a_reference() -> None:
    check_model("BigramForCausalLM", BIGRAM, model_class=Bigram, reference=PlainBigram())
    with pytest.raises(AssertionError, match="Loud fails 'one prompt'"):
        check_model("BigramForCausalLM", BIGRAM, model_class=Loud, reference=PlainBigram())


def test_without_a_reference_the_remedy_is_told() -> None:
    with pytest.raises(AssertionError, match="transformers has no BigramForCausalLM; give check_model a reference"):
        check_model("BigramForCausalLM", BIGRAM, model_class=Bigram)


KERNEL_SETS = """
    from dataclasses import dataclass

    MADE = []

    @hookimpl
    def register_kernels():
        yield KernelSpec(name="wide", target=f"{__name__}:build", settings=f"{__name__}:Width")

    @dataclass(frozen=True)
    class Width:
        width: int = 8

    def build(settings):
        from sglang_plug.contracts.model.kernels import TORCH
        MADE.append(settings.width)
        return TORCH
"""


def test_a_named_kernel_set_is_made_with_its_settings(install: Callable[..., Path]) -> None:
    install("sglang-wide", KERNEL_SETS)
    check_model("LlamaForCausalLM", CONFIGS["LlamaForCausalLM"], kernels="wide")
    assert importlib.import_module("sglang_wide").MADE == [8]
