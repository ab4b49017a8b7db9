"""Encoders and scoring heads of transformers give the same results in a batch as for single texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig

from sglang_plug import BuildEnv, ConfigError, Facts, Model, Pooling, WeightError
from sglang_plug.testing.model.attention_inputs import make_batch
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.transformers_fallback import choose_component
from sglang_plug_models.transformers_fallback.pooled import (
    TransformersClassifier,
    TransformersDecoder,
    TransformersEncoder,
)

CPU = torch.device("cpu")
SEPARATOR = 3
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DISTILLED = {"vocab_size": 96, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 4, "sep_token_id": SEPARATOR}
TEXTS = [[4, 7, 9, 11, 3], [4, 8, 3], [4, 30, 31, 3, 40, 41, 3], [4, 9, 3], [4, 50, 51, 52, 53, 54, 55, 56, 57, 58, 3]]
BODIES = {
    "mpnet": (TransformersEncoder, "MPNetModel", transformers.MPNetConfig(**{**SMALL, "pad_token_id": 1})),
    "distilbert": (TransformersEncoder, "DistilBertModel", transformers.DistilBertConfig(**DISTILLED)),
    "modernbert": (
        TransformersEncoder,
        "ModernBertModel",
        transformers.ModernBertConfig(**SMALL, **SPECIAL, local_attention=4, global_attn_every_n_layers=2),
    ),
    "deberta": (
        TransformersEncoder,
        "DebertaV2Model",
        transformers.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    ),
    "gemma": (TransformersDecoder, "GemmaModel", transformers.GemmaConfig(**SMALL, num_key_value_heads=2, head_dim=8)),
    "bidirectional gemma": (
        TransformersEncoder,
        "Gemma3TextModel",
        transformers.Gemma3TextConfig(
            **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4, use_bidirectional_attention=True
        ),
    ),
    "gpt2": (TransformersDecoder, "GPT2Model", transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4)),
}
HEADS = {
    "electra": ("ElectraForSequenceClassification", transformers.ElectraConfig(**SMALL, num_labels=3)),
    "one type": ("ElectraForSequenceClassification", transformers.ElectraConfig(**SMALL, type_vocab_size=1)),
    "camembert": (
        "CamembertForSequenceClassification",
        transformers.CamembertConfig(**{**SMALL, "pad_token_id": 1}, num_labels=1),
    ),
    "modernbert": ("ModernBertForSequenceClassification", transformers.ModernBertConfig(**SMALL, **SPECIAL)),
    "phi3": ("Phi3ForSequenceClassification", transformers.Phi3Config(**SMALL, num_labels=1)),
    "llama without padding": (
        "LlamaForSequenceClassification",
        transformers.LlamaConfig(**{**SMALL, "pad_token_id": None}, num_labels=2),
    ),
}
TYPED = {"electra"}
"""Families whose heads use the segment of each token in a pair of texts."""


def reference(architecture: str, config: PretrainedConfig) -> Any:
    config.architectures = [architecture]
    model = getattr(transformers, architecture)(config).float().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3))
    return model


def served(kind: type[TransformersEncoder], config: PretrainedConfig, stored: dict[str, Tensor]) -> Model:
    backend = TorchAttention(kind.attention_shape(config), CPU)
    tasks = ("classify",) if kind is TransformersClassifier else ("embed",)
    model = kind(config, BuildEnv(attention=backend, pooling=kind.default_pooling, tasks=tasks))  # type: ignore[arg-type]
    model.load_weights(stored.items())
    model.eval().prepare()
    return model


@torch.inference_mode()
def pooled(model: Model) -> Tensor:
    """Return the results of all texts in one batch."""
    tokens = torch.tensor([token for text in TEXTS for token in text])
    lengths = [len(text) for text in TEXTS]
    batch = make_batch([list(range(length)) for length in lengths], lengths, tokens=tokens, kv=None, device=CPU)
    return model.pool(model(batch), lengths)


@pytest.mark.parametrize("name", sorted(BODIES))
@torch.inference_mode()
def test_states(name: str) -> None:
    kind, architecture, config = BODIES[name]
    theirs = reference(architecture, config)
    mode = {"cls": 0, "last": -1}[kind.default_pooling.mode]
    expected = [theirs(input_ids=torch.tensor([text])).last_hidden_state[0, mode] for text in TEXTS]
    result = pooled(served(kind, config, theirs.state_dict()))
    assert torch.allclose(result, torch.nn.functional.normalize(torch.stack(expected), dim=-1), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "architecture", "config"),
    [
        (TransformersDecoder, "LlamaForCausalLM", transformers.LlamaConfig(**SMALL)),
        (TransformersEncoder, "ElectraForMaskedLM", transformers.ElectraConfig(**SMALL)),
    ],
)
@torch.inference_mode()
def test_a_head_is_left_out_where_states_are_wanted(
    kind: type[TransformersEncoder], architecture: str, config: PretrainedConfig
) -> None:
    theirs = reference(architecture, config)
    mode = {"cls": 0, "last": -1}[kind.default_pooling.mode]
    expected = [theirs.base_model(input_ids=torch.tensor([text])).last_hidden_state[0, mode] for text in TEXTS]
    result = pooled(served(kind, config, theirs.state_dict()))
    assert torch.allclose(result, torch.nn.functional.normalize(torch.stack(expected), dim=-1), atol=1e-5)


@pytest.mark.parametrize("name", sorted(HEADS))
@torch.inference_mode()
def test_scores(name: str) -> None:
    architecture, config = HEADS[name]
    theirs = reference(architecture, config)
    expected = []
    for text in TEXTS:
        first = text.index(SEPARATOR)
        types = {"token_type_ids": torch.tensor([[int(index > first) for index in range(len(text))]])}
        segments = types if name in TYPED else {}
        expected.append(theirs(input_ids=torch.tensor([text]), **segments).logits[0])
    result = pooled(served(TransformersClassifier, config, theirs.state_dict()))
    assert torch.allclose(result, torch.stack(expected), atol=1e-5)


def test_positions_that_are_left() -> None:
    """The models count positions from the padding token's id or from 0, or have no position embeddings."""
    lengths = {
        name: TransformersEncoder.context_length(prepared(*BODIES[name][1:]))
        for name in ("mpnet", "distilbert", "modernbert")
    }
    endless = prepared("XLNetModel", transformers.XLNetConfig(vocab_size=96, d_model=32, n_layer=1, n_head=4))
    assert TransformersEncoder.context_length(endless) == 4096
    assert lengths == {"mpnet": 62, "distilbert": 64, "modernbert": None}


def prepared(architecture: str, config: PretrainedConfig) -> PretrainedConfig:
    config.architectures = [architecture]
    return config


def test_a_pooler_and_a_head_for_pretraining_make_no_difference() -> None:
    kind, architecture, config = BODIES["mpnet"]
    stored = dict(reference(architecture, config).state_dict())
    expected = pooled(served(kind, config, stored))
    without = {name: tensor for name, tensor in stored.items() if not name.startswith("pooler.")}
    assert len(without) < len(stored)
    assert torch.equal(pooled(served(kind, config, {**without, "lm_head.bias": torch.zeros(96)})), expected)
    with pytest.raises(WeightError, match="no such parameter"):
        served(kind, config, {**stored, "strange.weight": torch.zeros(2)})
    del stored["encoder.layer.0.attention.LayerNorm.weight"]
    with pytest.raises(WeightError, match="unfilled, first 'encoder.layer.0.attention"):
        served(kind, config, stored)


def test_a_head_that_is_missing_is_not_made_up() -> None:
    architecture, config = HEADS["electra"]
    stored = dict(reference(architecture, config).state_dict())
    del stored["classifier.out_proj.weight"]
    with pytest.raises(WeightError, match=r"unfilled, first 'classifier.out_proj.weight'"):
        served(TransformersClassifier, config, stored)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (prepared("BartModel", transformers.BartConfig()), "it has an encoder and a decoder"),
        (prepared("CLIPModel", transformers.CLIPConfig()), "no vocab_size of its own"),
        (prepared("ViTModel", transformers.ViTConfig()), "it does not read tokens"),
        (prepared("NowhereForSequenceClassification", transformers.BertConfig()), "has no class of that name"),
    ],
)
def test_models_that_do_not_read_texts_are_refused(config: PretrainedConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be served through transformers: .*{words}"):
        TransformersEncoder.attention_shape(config)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TransformersEncoder, "its first state sees one token only; --model-impl transformers-decoder takes the last"),
        (TransformersClassifier, "it has no head that scores texts"),
    ],
)
def test_a_component_that_does_not_suit_the_model_is_refused(kind: type[TransformersEncoder], words: str) -> None:
    with pytest.raises(ConfigError, match=f"LlamaForCausalLM cannot be served through transformers: {words}"):
        kind.attention_shape(prepared("LlamaForCausalLM", transformers.LlamaConfig(**SMALL)))


@pytest.mark.parametrize("name", sorted(BODIES))
def test_bodies_are_offered(name: str) -> None:
    kind, architecture, config = BODIES[name]
    chosen = "transformers-encoder" if kind is TransformersEncoder else "transformers-decoder"
    assert choose_component("model", Facts(model=prepared(architecture, config))) == chosen
    assert kind.default_pooling == Pooling(mode="cls" if kind is TransformersEncoder else "last")


def test_heads_are_offered_and_strangers_are_not() -> None:
    config = prepared("ElectraForSequenceClassification", transformers.ElectraConfig())
    assert choose_component("model", Facts(model=config)) == "transformers-classifier"
    strange: Any = SimpleNamespace(architectures=["NowhereModel"], model_type="nowhere")
    assert choose_component("model", Facts(model=strange)) is None
