"""The load generators of SGLang and vLLM measure a real server, and all of their requests succeed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SENT = 6


@pytest.fixture(scope="module")
def tokenizer() -> str:
    """The folder of the demo model's tokenizer."""
    spec = importlib.util.find_spec("sglang_plug_models.demo")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent / "sglang-plug-demo")


def test_vllm_bench_serve(programs: Any, server: Any, tokenizer: str) -> None:
    arguments = ("openai-chat", "/v1/chat/completions", tokenizer)
    report = programs.load_generator("vllm_bench", server.url, *arguments, needs="vllm")
    assert (report["completed"], report["failed"]) == (SENT, 0)
    assert report["total_output_tokens"] > SENT


def test_vllm_bench_serve_of_embeddings(programs: Any, encoder: Any, tokenizer: str) -> None:
    arguments = ("openai-embeddings", "/v1/embeddings", tokenizer)
    report = programs.load_generator("vllm_bench", encoder.url, *arguments, needs="vllm")
    assert report["completed"] == SENT and not report["failed"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_vllm_bench_serve_of_rerank(path: str, programs: Any, reranker: Any, tokenizer: str) -> None:
    report = programs.load_generator("vllm_bench", reranker.url, "vllm-rerank", path, tokenizer, needs="vllm")
    assert report["completed"] == SENT and not report["failed"]
    assert report["total_input_tokens"] > SENT


def test_sglang_bench_serving(programs: Any, server: Any, tokenizer: str) -> None:
    report = programs.load_generator("sglang_bench", server.url, "sglang", tokenizer, needs="sglang")
    assert report["completed"] == SENT and report["total_output_tokens"] >= SENT
