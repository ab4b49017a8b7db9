"""Reward models and rerankers, asked as the documents of the native API ask them, with their flags."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

PROMPT = "What is the range of the numeric output of a sigmoid node in a neural network?"
RESPONSES = [
    "The output of a sigmoid node is bounded between -1 and 1.",
    "The output of a sigmoid node is bounded between 0 and 1.",
]
QUERY = "what is panda?"
DOCUMENTS = [
    "hi",
    "The giant panda (Ailuropoda melanoleuca), sometimes called a panda bear or simply panda, is a bear species "
    "endemic to China.",
]
WIDTHS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "num_labels": 1,
}


def demo() -> Path:
    """The demo model's folder: its tokenizer has a chat template."""
    spec = importlib.util.find_spec("sglang_plug_models.demo")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "sglang-plug-demo"


def save(model: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    model.float().eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel, Any]:
    """A random reward model with the demo model's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("reward"), AutoTokenizer.from_pretrained(demo())
    torch.manual_seed(2)
    config = LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, pad_token_id=0, **WIDTHS)
    model = LlamaForSequenceClassification(config)
    save(model, tokenizer, folder)
    return folder, model, tokenizer


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel, Any]:
    """A random cross-encoder with the demo model's tokenizer and XLM-RoBERTa's template for pairs."""
    from tokenizers import processors

    folder, tokenizer = tmp_path_factory.mktemp("reranker"), AutoTokenizer.from_pretrained(demo())
    token = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A {token}",
        pair=f"{token} $A {token} {token} $B {token}",
        special_tokens=[(token, tokenizer.eos_token_id)],
    )
    torch.manual_seed(3)
    config = XLMRobertaConfig(vocab_size=len(tokenizer), pad_token_id=1, type_vocab_size=1, **WIDTHS)
    model = XLMRobertaForSequenceClassification(config)
    save(model, tokenizer, folder)
    return folder, model, tokenizer


def scores(model: PreTrainedModel, given: Any) -> float:
    with torch.inference_mode():
        return float(model(input_ids=given["input_ids"]).logits[0, 0])


def test_classify(reward: Any, launch: Any) -> None:
    folder, model, _ = reward
    server = launch("--model-path", str(folder), "--host", "0.0.0.0", "--is-embedding")
    conversations = [
        [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": response}] for response in RESPONSES
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = tokenizer.apply_chat_template(conversations, tokenize=False, return_dict=False)
    url = f"{server.url}/classify"
    responses = httpx.post(url, json={"model": "Skywork/Skywork-Reward-Llama-3.1-8B-v0.2", "text": prompts}).json()
    rewards = [response["embedding"][0] for response in responses]
    expected = [scores(model, tokenizer(prompt, return_tensors="pt")) for prompt in prompts]
    assert rewards == pytest.approx(expected, abs=1e-4) and rewards[0] != pytest.approx(rewards[1], abs=1e-3)
    assert server.get("/get_model_info").json()["is_generation"] is False
    server.wait_whole()


def test_rerank(reranker: Any, launch: Any) -> None:
    folder, model, _ = reranker
    flags = ["--host", "0.0.0.0", "--disable-radix-cache", "--chunked-prefill-size", "-1"]
    flags += ["--attention-backend", "torch", "--is-embedding", "--log-level", "warning"]
    server = launch("--model-path", str(folder), *flags)
    data = {"model": "BAAI/bge-reranker-v2-m3", "query": QUERY, "documents": DOCUMENTS}
    items = httpx.post(f"{server.url}/v1/rerank", json=data).json()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = {one: scores(model, tokenizer(QUERY, one, return_tensors="pt")) for one in DOCUMENTS}
    assert [item["document"] for item in items] == sorted(DOCUMENTS, key=lambda one: -expected[one])
    assert [item["score"] for item in items] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-4)
    assert len({f"{item['score']:.2f}" for item in items}) == 2
    server.wait_whole()
