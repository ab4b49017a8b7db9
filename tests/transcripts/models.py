"""Tiny checkpoints for the servers and the offline engine, with the same weights on every call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from tests.e2e.document_models import demo
from tests.e2e.vision_families import FAMILIES as VISION_FAMILIES
from tests.e2e.vision_models import make_vision_model
from tests.families import families
from tests.peft_adapters import linears, make_lora

WIDTHS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
POOLING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", {}),
    "roberta": ("RobertaModel", "RobertaConfig", {"pad_token_id": 1}),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", {"pad_token_id": 1}),
    "bert-reranker": ("BertForSequenceClassification", "BertConfig", {"num_labels": 1}),
    "roberta-classifier": ("RobertaForSequenceClassification", "RobertaConfig", {"num_labels": 3, "pad_token_id": 1}),
    "xlm-reranker": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig", {"num_labels": 1, "pad_token_id": 1}),
    "llama-embedding": ("LlamaModel", "LlamaConfig", {"num_key_value_heads": 2}),
    "mistral-embedding": ("MistralModel", "MistralConfig", {"num_key_value_heads": 2}),
    "qwen2-embedding": ("Qwen2Model", "Qwen2Config", {"num_key_value_heads": 2}),
    "qwen3-embedding": ("Qwen3Model", "Qwen3Config", {"num_key_value_heads": 2, "head_dim": 16}),
    "llama-reward": ("LlamaForSequenceClassification", "LlamaConfig", {"num_labels": 1}),
    "mistral-classifier": (
        "MistralForSequenceClassification",
        "MistralConfig",
        {"num_labels": 3, "num_key_value_heads": 2},
    ),
    "qwen2-classifier": ("Qwen2ForSequenceClassification", "Qwen2Config", {"num_labels": 3, "num_key_value_heads": 2}),
    "qwen3-classifier": (
        "Qwen3ForSequenceClassification",
        "Qwen3Config",
        {"num_labels": 2, "num_key_value_heads": 2, "head_dim": 16},
    ),
    "gemma2-classifier": (
        "Gemma2ForSequenceClassification",
        "Gemma2Config",
        {"num_labels": 2, "num_key_value_heads": 2, "head_dim": 16},
    ),
}
VISION_AND_OTHERS: dict[str, tuple[str, str]] = {
    "dbrx": ("dbrx/test_model", "dbrx"),
    "mpt": ("mpt/test_model", "mpt 7b"),
    "jetmoe": ("jetmoe/test_model", "jetmoe"),
    "bamba": ("mamba_hybrid/test_models", "bamba"),
    "zamba2": ("mamba_hybrid/test_models", "zamba2"),
    "falcon-mamba": ("mamba/test_models", "falcon-mamba"),
    "glm": ("glm/test_models", "glm"),
    "command-r7b": ("cohere/test_models", "command r7b"),
    "codegen": ("eleutherai/test_models", "codegen"),
    "ministral-3": ("mistral/test_model", "ministral 3"),
    "qwen3.5-moe": ("qwen_next/test_models", "qwen3.5 with experts"),
}
"""Families whose configurations are ``CASES`` of the tests of their models."""


def cases(module: str) -> dict[str, tuple[str, PretrainedConfig]]:
    """Return the configurations in the tests of a family."""
    tests = importlib.import_module("tests.builtin_models." + module.replace("/", "."))
    return dict(tests.CASES)


def makers(folder: Path) -> dict[str, Callable[[], Path]]:
    """Return a function for each tiny model, by name, that writes its checkpoint and returns the folder."""
    models: dict[str, Callable[[], Path]] = {
        name: partial(make_text, folder / name, config) for name, config in families().items()
    }
    for name, (module, case) in VISION_AND_OTHERS.items():
        models[name] = partial(make_case, folder / name, *cases(module)[case])
    for name in POOLING:
        models[name] = partial(make_pooling, folder / name, name, tokenizer=False)
    for name in VISION_FAMILIES:
        models[f"{name} with images"] = partial(_make_vision_model, name, folder / f"{name}-vision")
    return models


def _make_vision_model(name: str, folder: Path) -> Path:
    return make_vision_model(name, folder).path


def make_text(folder: Path, config: PretrainedConfig) -> Path:
    """Write a causal model with random weights."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.save_pretrained(folder)
    return folder


def make_case(folder: Path, architecture: str, config: PretrainedConfig) -> Path:
    """Write a model of a given class with random weights that are large enough for outputs to differ."""
    torch.manual_seed(7)
    model = getattr(transformers, architecture)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "A_log" not in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    return folder


def make_pooling(folder: Path, name: str, *, tokenizer: bool) -> Path:
    """Write an encoder, reward model or classifier with random weights."""
    architecture, configuration, more = POOLING[name]
    torch.manual_seed(7)
    tokens = AutoTokenizer.from_pretrained(demo())
    size = {"vocab_size": len(tokens) if tokenizer else 512, "pad_token_id": 0}
    config = getattr(transformers, configuration)(**{**WIDTHS, **size, **more})
    getattr(transformers, architecture)(config).float().eval().save_pretrained(folder)
    if tokenizer:
        tokens.save_pretrained(folder)
    return folder


def make_recurrent(folder: Path) -> Path:
    """Write a tiny hybrid of recurrent layers and attention, with the tokenizer of the demo model."""
    tokens = AutoTokenizer.from_pretrained(demo())
    config = families()["qwen3.5"]
    config.vocab_size, config.eos_token_id = len(tokens), tokens.eos_token_id
    make_text(folder, config)
    tokens.save_pretrained(folder)
    return folder


def make_adapters(folder: Path) -> dict[str, Path]:
    """Write two LoRA adapters of the demo model, and return their folders by name."""
    model = AutoModelForCausalLM.from_pretrained(demo(), dtype=torch.float32)
    names = linears(model, r".*layers.*_proj")
    both = {"red": 0, "blue": 1}
    return {name: make_lora(folder / name, model, names, seed=seed, size=0.4).path for name, seed in both.items()}
