"""The calls that the published pages of the native API and the quick start make with ``requests``."""

from __future__ import annotations

import json
import sys
from typing import Any

import requests

URL = sys.argv[1]


def post(path: str, body: Any = None, **options: Any) -> requests.Response:
    """Send a POST request with a JSON body."""
    return requests.post(f"{URL}{path}", json=body, timeout=240, **options)


def streamed(path: str, body: dict[str, Any]) -> str:
    """Return the text that a client prints from a stream whose events contain the text so far."""
    printed = ""
    with post(path, {**body, "stream": True}, stream=True) as answer:
        for raw in answer.iter_lines(decode_unicode=False):
            line = raw.decode()
            if line == "data: [DONE]":
                break
            if line.startswith("data:"):
                text = json.loads(line[5:])["text"]
                printed += text[len(printed) :]
    return printed


ids = post("/tokenize", {"prompt": "What is the capital of France?"}).json()["tokens"]
continued = {"text": "The capital of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 32}}
question = {"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
print(
    json.dumps(
        {
            "chat": post("/v1/chat/completions", question).json(),
            "generate": post("/generate", {"text": "What is the capital of France?"}).json(),
            "whole": post("/generate", continued).json()["text"],
            "streamed": streamed("/generate", continued),
            "model_info": requests.get(f"{URL}/get_model_info", timeout=240).json(),
            "server_info": requests.get(f"{URL}/get_server_info", timeout=240).json(),
            "health": [
                requests.get(f"{URL}{path}", timeout=240).status_code for path in ("/health", "/health_generate")
            ],
            "flush": post("/flush_cache").text,
            "ids": ids,
            "text": post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json()["text"],
            "update": post("/update_weights_from_disk", {"model_path": "no/such-model"}).json(),
            "experts": requests.post(f"{URL}/start_expert_distribution_record", timeout=240).status_code,
            "refused": post("/encode", {"model": "demo", "text": "Once upon a time"}).status_code,
        }
    )
)
