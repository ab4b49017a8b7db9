"""Recorded requests to the other routes of a generative model: information, tokens, adapters, pooling, weights."""

from __future__ import annotations

import time
from typing import Any

from .exchanges import Talk
from .generation import GENERATE, PROMPT

INFORMATION = (
    "/health /ping /ready /readyz /health_generate /model_info /get_model_info /server_info /get_server_info /plugins "
    "/v1/loads /load /get_load /activity /version /v1/models /openapi.json /docs"
).split()
POOLED: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": "a"}),
    "encode": ("/encode", {"text": "a"}),
    "classify": ("/classify", {"text": "a"}),
    "classify of OpenAI": ("/v1/classify", {"input": "a"}),
    "rerank": ("/rerank", {"query": "a", "documents": ["b", "c"]}),
    "rerank of version 2": ("/v2/rerank", {"query": "a", "documents": ["b", "c"]}),
    "rerank of version 1": ("/v1/rerank", {"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    "score": ("/score", {"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]}),
    "score, softmax": ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [5, 6], "apply_softmax": True}),
    "score, item first": ("/v1/score", {"query": "a", "items": "b", "label_token_ids": [5], "item_first": True}),
    "score of texts": ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    "embeddings of tokens": ("/v1/embeddings", {"input": [[5, 6], [7]]}),
    "embeddings as base64": ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    "embeddings, fewer dimensions": ("/v1/embeddings", {"input": "a", "dimensions": 4}),
    "encode several": ("/encode", {"text": ["a", "b"]}),
}


def ask_information(talk: Talk) -> None:
    """Ask the routes with information about the server."""
    wait_idle(talk)
    with talk.group("information"):
        for path in INFORMATION:
            talk.get(path, path)
        talk.get("the model", "/v1/models/sglang-plug-demo")
        talk.get("another model", "/v1/models/nonsense")


def ask_metrics(talk: Talk) -> None:
    """Ask for all metrics: names, types, labels, and the values that do not depend on time."""
    wait_idle(talk)
    with talk.group("metrics"):
        talk.get("all", "/metrics")


def wait_idle(talk: Talk) -> None:
    """Wait until no request is running."""
    for _ in range(500):
        loads = talk.quietly("GET", "/v1/loads").field("loads")
        if loads == "none" or not any(load["num_total_reqs"] for load in loads):
            return
        time.sleep(0.02)


def ask_pooling(talk: Talk) -> None:
    """Ask for embeddings, scores and labels, most of which a generative model refuses."""
    with talk.group("pooling"):
        for name, (path, body) in POOLED.items():
            talk.post(name, path, body)
        for path in ("/encode", "/classify"):
            talk.send(f"put {path}", "PUT", path, {"text": "a"})


def ask_tokens(talk: Talk) -> None:
    """Convert texts to tokens and back."""
    with talk.group("tokens"):
        for path in ("/tokenize", "/v1/tokenize"):
            talk.post(f"{path} text", path, {"prompt": "Hello, wörld! 🦊"})
            talk.post(f"{path} texts", path, {"prompt": ["a b", ""], "add_special_tokens": False})
            talk.post(f"{path} strings", path, {"prompt": "Hello, wörld!", "return_token_strs": True})
            messages = [{"role": "user", "content": "a"}]
            talk.post(f"{path} messages", path, {"messages": messages, "add_generation_prompt": False})
            talk.post(f"{path} both", path, {"messages": messages, "prompt": "a"})
        for path in ("/detokenize", "/v1/detokenize"):
            talk.post(f"{path} tokens", path, {"tokens": [1, 304, 284, 4], "skip_special_tokens": False})
            talk.post(f"{path} lists", path, {"tokens": [[1, 304], []]})
            talk.post(f"{path} out of the vocabulary", path, {"tokens": [10**6]})


def ask_administration(talk: Talk) -> None:
    """Call administrative routes: abort, flush, adapters and experts of a model without any, weights."""
    with talk.group("administration"):
        talk.post("abort nobody", "/abort_request", {"rid": "nobody"})
        talk.post("abort all", "/abort_request", {"abort_all": True})
        talk.post("abort neither", "/abort_request", {})
        talk.get("flush", "/flush_cache")
        talk.post("flush by POST", "/flush_cache")
        for prefix in ("", "/v1"):
            body = {"lora_name": "a", "lora_path": "nowhere"}
            talk.post(f"load an adapter{prefix}", f"{prefix}/load_lora_adapter", body)
            talk.post(f"unload an adapter{prefix}", f"{prefix}/unload_lora_adapter", {"lora_name": "a"})
        talk.post("use an adapter", GENERATE, {"text": "a", "lora_path": "a"})
        for verb in ("start", "stop", "dump"):
            talk.post(f"{verb} counting experts", f"/{verb}_expert_distribution_record")


def ask_weights(talk: Talk, folder: str) -> None:
    """Update the weights from a missing folder, and from the folder of the same weights."""
    with talk.group("weights"):
        talk.post("the same version", "/update_weight_version", {"new_version": "default"})
        for path in ("/update_weights_from_disk", "/update_weights"):
            talk.post(f"{path} nowhere", path, {"model_path": "nowhere"})
            talk.post(f"{path} the same", path, {"model_path": folder, "weight_version": path})
        talk.post("generate after", GENERATE, {"text": PROMPT, "sampling_params": {"temperature": 0}})
        talk.get("version after", "/model_info")
