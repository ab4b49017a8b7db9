"""Tiny random models of each pooling task, with tokenizers, and the results of transformers for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

WORDS = "hi what is a panda ? the giant bear lives in china once upon time yes no good bad".split()
WIDTHS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }} {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words with the special tokens that the model family expects around texts and pairs."""
    first, last, unknown, pad = (
        ("[CLS]", "[SEP]", "[UNK]", "[PAD]") if kind == "bert" else ("<s>", "</s>", "<unk>", "<pad>")
    )
    special = [pad, unknown, first, last] if kind == "bert" else [first, pad, last, unknown]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    between = f"{last} $B:1 {last}:1" if kind == "bert" else f"{last} {last} $B {last}"
    if kind != "decoder":
        backend.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {between}",
            special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=unknown,
        pad_token=pad,
        bos_token=first,
        eos_token=last,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


MODELS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "encoder": ("bert", "BertModel", {"pad_token_id": 0}),
    "decoder": ("decoder", "Qwen2ForCausalLM", {"num_key_value_heads": 2, "max_position_embeddings": 96}),
    "reward": ("decoder", "LlamaForSequenceClassification", {"num_labels": 1, "pad_token_id": 1}),
    "bert-reranker": ("bert", "BertForSequenceClassification", {"num_labels": 1, "pad_token_id": 0}),
    "xlm-reranker": ("xlm", "XLMRobertaForSequenceClassification", {"num_labels": 1, "pad_token_id": 1}),
    "labels": (
        "bert",
        "BertForSequenceClassification",
        {
            "pad_token_id": 0,
            "id2label": {0: "good", 1: "bad", 2: "so so"},
            "label2id": {"good": 0, "bad": 1, "so so": 2},
        },
    ),
    "flags": (
        "bert",
        "BertForSequenceClassification",
        {"pad_token_id": 0, "num_labels": 3, "problem_type": "multi_label_classification"},
    ),
}


class Tiny:
    """A checkpoint on disk with its tokenizer, and the model of transformers with its weights."""

    def __init__(self, name: str, path: Path) -> None:
        kind, architecture, more = MODELS[name]
        self.path, self.tokenizer = path, tokenizer(kind)
        if kind == "decoder":
            self.tokenizer.chat_template = TEMPLATE
        torch.manual_seed(5)
        base = getattr(transformers, architecture)
        config = base.config_class(vocab_size=len(self.tokenizer), **{**WIDTHS, **more})
        self.model = base(config).float().eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        self.model.save_pretrained(path)
        self.tokenizer.save_pretrained(path)

    @torch.inference_mode()
    def states(self, text: str) -> Tensor:
        """Return the hidden states of the model body for a text, ``[T, hidden]``."""
        inputs = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        return self.model.base_model(input_ids=inputs["input_ids"]).last_hidden_state[0]

    @torch.inference_mode()
    def logits(self, *text: str) -> list[float]:
        """Return the logits of the head for a text or a pair of texts."""
        inputs = self.tokenizer(*text, return_tensors="pt")
        if "XLM" in type(self.model).__name__ or "Llama" in type(self.model).__name__:
            inputs.pop("token_type_ids", None)
        return self.model(**inputs).logits[0].tolist()

    def tokens(self, *text: str) -> list[int]:
        """Return the token ids of a text or a pair of texts, with special tokens."""
        return list(self.tokenizer(*text)["input_ids"])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tiny]:
    """Return a function that makes a tiny model on its first use: ``tiny(name)``."""
    return functools.cache(lambda name: Tiny(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def served(apps: Callable[..., Any], tiny: Callable[[str], Tiny]) -> Callable[..., Any]:
    """Return a function that serves a tiny model, by default with ``--is-embedding``: ``served(name, **options)``."""
    return lambda name, **options: apps(model_path=str(tiny(name).path), **{"is_embedding": True, **options})
