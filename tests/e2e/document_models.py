"""Tiny models in place of those that published documents name, and the results of ``transformers`` for them."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

WIDTHS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@cache
def demo() -> Path:
    """Return the folder of the demo model: it answers most questions of the documents, and has a chat template."""
    spec = importlib.util.find_spec("sglang_plug_models.demo")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "sglang-plug-demo"


def make_models(folder: Path) -> Mapping[str, Path]:
    """Write the models, and return their folders by the names in the documents."""
    tokenizer = AutoTokenizer.from_pretrained(demo())
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    grouped = {**WIDTHS, **tokens, "num_key_value_heads": 2}
    torch.manual_seed(2)
    models: dict[str, PreTrainedModel] = {
        "embedding": Qwen2ForCausalLM(Qwen2Config(**grouped)),
        "reward": LlamaForSequenceClassification(LlamaConfig(**grouped, num_labels=1)),
        "experts": Qwen2MoeForCausalLM(
            Qwen2MoeConfig(
                **grouped,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=16,
                shared_expert_intermediate_size=16,
            )
        ),
        "reranker": XLMRobertaForSequenceClassification(
            XLMRobertaConfig(**{**WIDTHS, **tokens, "pad_token_id": 1}, type_vocab_size=1, num_labels=1)
        ),
    }
    for name, model in models.items():
        model.float().eval().save_pretrained(folder / name)
        (_for_pairs(tokenizer) if name == "reranker" else tokenizer).save_pretrained(folder / name)
    return {
        "meta-llama/Meta-Llama-3.1-8B-Instruct": demo(),
        "meta-llama/Llama-3.2-1B-Instruct": demo(),
        "meta-llama/Llama-3.2-1B": shutil.copytree(demo(), folder / "base"),
        "qwen/qwen2.5-0.5b-instruct": demo(),
        "Qwen/Qwen2.5-7B-Instruct": demo(),
        "Alibaba-NLP/gte-Qwen2-7B-instruct": folder / "embedding",
        "Alibaba-NLP/gte-Qwen2-1.5B-instruct": folder / "embedding",
        "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2": folder / "reward",
        "BAAI/bge-reranker-v2-m3": folder / "reranker",
        "Qwen/Qwen1.5-MoE-A2.7B": folder / "experts",
    }


def _for_pairs(tokenizer: Any) -> Any:
    """Return the demo model's tokenizer with XLM-RoBERTa's template for a query and a document."""
    token, own = tokenizer.eos_token, AutoTokenizer.from_pretrained(demo())
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A {token}",
        pair=f"{token} $A {token} {token} $B {token}",
        special_tokens=[(token, tokenizer.eos_token_id)],
    )
    return own


def embedding(folder: Path, text: str) -> list[float]:
    """Return the normalized hidden state of the last token of a text."""
    model, inputs = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)(text)
    with torch.inference_mode():
        states = model(torch.tensor([inputs["input_ids"]]), output_hidden_states=True).hidden_states[-1]
        values: list[float] = nn.functional.normalize(states[0, -1], dim=0).tolist()
    return values


def score(folder: Path, *texts: str) -> float:
    """Return the score that a sequence classifier gives a text or a pair of texts."""
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return float(model(input_ids=tokenizer(*texts, return_tensors="pt")["input_ids"]).logits[0, 0])
