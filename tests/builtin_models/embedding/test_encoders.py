"""Encoders refuse unusable checkpoints, and read the tensor names of older checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, RobertaConfig, XLMRobertaConfig

from sglang_plug import BuildEnv, ConfigError, Plugins, WeightError
from sglang_plug.contracts.model.attention import AttentionBackend
from sglang_plug_models.embedding.encoders import Bert, Roberta

SMALL: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
}


def build(config: Any) -> Bert:
    attention = Plugins.discover().get("attention", "torch").load(AttentionBackend)
    backend = attention(Bert.attention_shape(config), torch.device("cpu"))
    return Bert(config, BuildEnv(attention=backend, tasks=("embed",)))


def weights() -> dict[str, Tensor]:
    return BertModel(BertConfig(**SMALL)).state_dict()


def filled(names: dict[str, Tensor]) -> dict[str, Tensor]:
    model = build(BertConfig(**SMALL))
    model.load_weights(names.items())
    return model.state_dict()


def test_names_of_older_checkpoints() -> None:
    new = weights()
    old = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): item
        for name, item in new.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    expected, actual = filled(new), filled(old)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(actual[name], item) for name, item in expected.items())


def test_loading_is_strict() -> None:
    short = weights()
    del short["encoder.layer.0.attention.self.key.bias"]
    with pytest.raises(WeightError, match="'k' is missing"):
        filled(short)
    with pytest.raises(WeightError, match="cls.predictions"):
        filled({**weights(), "cls.predictions.bias": torch.zeros(30)})


def test_other_kinds_of_positions_are_refused() -> None:
    config = BertConfig(**SMALL)
    config.position_embedding_type = "relative_key"
    with pytest.raises(ConfigError, match="relative_key"):
        build(config)


def test_positions_behind_the_padding_tokens_are_what_a_text_may_take() -> None:
    assert Bert.context_length(BertConfig(**SMALL)) == 20
    assert Roberta.context_length(RobertaConfig(**{**SMALL, "pad_token_id": 1})) == 18
    assert Roberta.context_length(XLMRobertaConfig(**{**SMALL, "pad_token_id": 5})) == 14
