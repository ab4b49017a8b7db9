"""Recorded requests about objects that the server stores: responses, files and batches."""

from __future__ import annotations

import json
import time
from typing import Any

from .exchanges import Talk
from .generation import CHAT, SAMPLED
from .structured import PERSON, WEATHER

RESPONSES, FILES, BATCHES = "/v1/responses", "/v1/files", "/v1/batches"
ASK = "What is the capital of France?"
BATCH_TIMEOUT = 60.0
"""Maximum seconds until a batch has ended."""
CREATED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {**SAMPLED},
    "instructions and metadata": {"instructions": "Be brief.", "metadata": {"a": "b"}},
    "not stored": {"store": False},
    "length": {"max_output_tokens": 3},
    "items": {
        "input": [
            {"role": "user", "content": ASK},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And of Japan?"}]},
        ]
    },
    "an image for a model of text": {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,eA=="}]}]
    },
    "json schema": {"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}},
    "json object": {"text": {"format": {"type": "json_object"}}},
    "bad schema": {"text": {"format": {"type": "json_schema", "name": "p", "schema": {"type": "x"}}}},
    "tool": {"tools": [{"type": "function", **WEATHER}], "input": "What's the weather like in Boston today?"},
    "tool, required": {"tools": [{"type": "function", **WEATHER}], "tool_choice": "required"},
    "tool, named": {
        "tools": [{"type": "function", **WEATHER}],
        "tool_choice": {"type": "function", "name": "get_current_weather"},
    },
    "call and output": {
        "input": [
            {"role": "user", "content": "The weather in Boston?"},
            {"type": "function_call", "call_id": "c1", "name": "get_current_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
        ]
    },
    "log-probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 4},
    "reasoning": {"reasoning": {"effort": "low"}},
    "background": {"background": True},
    "truncation": {"truncation": "auto"},
    "unknown previous response": {"previous_response_id": "resp_nonsense"},
    "unknown include": {"include": ["nonsense"]},
    "conversation": {"conversation": "conv_1"},
    "user": {"user": "someone", "model": "another"},
}


def ask_responses(talk: Talk) -> None:
    """Create, stream, retrieve, continue and delete responses."""
    base = {"input": ASK, "max_output_tokens": 40, "temperature": 0}
    with talk.group("responses"):
        for name, more in CREATED.items():
            talk.both(name, RESPONSES, {**base, **more})
            talk.post(f"{name}, counted", f"{RESPONSES}/input_tokens", {**base, **more})
        first = talk.post("first turn", RESPONSES, base).field("id")
        again = {**base, "input": "And of Japan?", "previous_response_id": first}
        second = talk.post("second turn", RESPONSES, again).field("id")
        talk.both("second turn, other instructions", RESPONSES, {**again, "instructions": "Shout."})
        for name, id in {"first": first, "second": second, "unknown": "resp_nonsense"}.items():
            talk.get(f"retrieve {name}", f"{RESPONSES}/{id}")
            for query in ("", "?limit=1", "?order=asc", "?limit=0", "?order=up", "?after=msg_x"):
                talk.get(f"input items of {name}{query}", f"{RESPONSES}/{id}/input_items{query}")
            talk.post(f"cancel {name}", f"{RESPONSES}/{id}/cancel")
            talk.send(f"delete {name}", "DELETE", f"{RESPONSES}/{id}")
            talk.get(f"retrieve {name} after", f"{RESPONSES}/{id}")
        talk.get("stream of an old one", f"{RESPONSES}/{second}?stream=true")
        talk.post("turn after a deleted one", RESPONSES, again)


def _upload(talk: Talk, name: str, content: bytes, purpose: str | None = "batch", filename: str = "input.jsonl") -> str:
    edge = "edge-of-a-part"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n' if purpose else ""
    head += f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
    raw = head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + content + f"\r\n--{edge}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={edge}"}
    return str(talk.send(name, "POST", FILES, raw=raw, headers=kind).field("id"))


def _lines(*bodies: dict[str, Any], url: str = CHAT) -> bytes:
    requests = [
        {"custom_id": f"line {number}", "method": "POST", "url": url, "body": body}
        for number, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def _finished(talk: Talk, batch: str) -> None:
    """Wait until a batch has ended, without recording the requests."""
    deadline = time.monotonic() + BATCH_TIMEOUT
    while talk.quietly("GET", f"{BATCHES}/{batch}").field("status") in ("validating", "in_progress", "finalizing"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the batch {batch} has not ended after {BATCH_TIMEOUT:.0f} s")
        time.sleep(0.05)


def ask_storage(talk: Talk) -> None:
    """Create and read files and batches, valid and invalid ones."""
    body = {"messages": [{"role": "user", "content": ASK}], "max_tokens": 5, "temperature": 0}
    with talk.group("files"):
        talk.get("none yet", FILES)
        talk.get("no batches yet", BATCHES)
        kept = _upload(talk, "upload", _lines(body, {**body, "max_tokens": 3}))
        other = _upload(talk, "for users", b"\x00\xff binary", "user_data", "data.bin")
        _upload(talk, "unknown purpose", b"x", "nonsense")
        _upload(talk, "without a purpose", b"x", None)
        _upload(talk, "empty", b"")
        talk.send("no form", "POST", FILES, {"purpose": "batch"})
        talk.send("broken form", "POST", FILES, raw=b"x", headers={"Content-Type": "multipart/form-data; boundary=y"})
        for query in ("", "?purpose=batch", "?limit=1", "?limit=x", "?order=asc", "?after=nonsense"):
            talk.get(f"list{query}", f"{FILES}{query}")
        for name, id in {"kept": kept, "other": other, "unknown": "file-nonsense"}.items():
            talk.get(f"one, {name}", f"{FILES}/{id}")
            talk.get(f"content, {name}", f"{FILES}/{id}/content")
    with talk.group("batches"):
        ordered = {"input_file_id": kept, "endpoint": CHAT, "completion_window": "24h"}
        _run_batch(talk, "chats", {**ordered, "metadata": {"a": "b"}})
        broken = _upload(talk, "upload broken lines", b'{"custom_id": "a"}\nno json\n' + _lines({"messages": 5}))
        _run_batch(talk, "broken lines", {**ordered, "input_file_id": broken})
        texts = _lines({"prompt": "The", "max_tokens": 2, "temperature": 0}, {"prompt": None}, url="/v1/completions")
        texts_id = _upload(talk, "upload completions", texts)
        _run_batch(talk, "completions", {**ordered, "input_file_id": texts_id, "endpoint": "/v1/completions"})
        _run_batch(talk, "another endpoint", {**ordered, "endpoint": "/v1/completions"})
        _run_batch(talk, "embeddings", {**ordered, "endpoint": "/v1/embeddings"})
        for name, more in {
            "unknown file": {"input_file_id": "nonsense"},
            "wrong purpose": {"input_file_id": other},
            "unknown endpoint": {"endpoint": "/nonsense"},
            "another window": {"completion_window": "1h"},
        }.items():
            talk.post(name, BATCHES, {**ordered, **more})
        for query in ("", "?limit=2", "?limit=0", "?after=nonsense"):
            talk.get(f"list{query}", f"{BATCHES}{query}")
        talk.get("unknown", f"{BATCHES}/nonsense")
        talk.post("cancel unknown", f"{BATCHES}/nonsense/cancel")
    with talk.group("deleted files"):
        for name, id in {"kept": kept, "again": kept, "unknown": "nonsense"}.items():
            talk.send(name, "DELETE", f"{FILES}/{id}")


def _run_batch(talk: Talk, name: str, body: dict[str, Any]) -> None:
    """Start a batch, wait for its end, and read its output files."""
    batch = talk.post(name, BATCHES, body)
    if batch.status != 200:
        return
    id = batch.field("id")
    _finished(talk, id)
    ended = talk.get(f"{name}, ended", f"{BATCHES}/{id}")
    for part in ("output_file_id", "error_file_id"):
        written = ended.field(part)
        if isinstance(written, str) and written != "none":
            talk.get(f"{name}, {part}", f"{FILES}/{written}")
            talk.get(f"{name}, content of {part}", f"{FILES}/{written}/content")
    talk.post(f"{name}, cancel", f"{BATCHES}/{id}/cancel")
