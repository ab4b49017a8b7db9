"""Recorded requests that a server refuses: wrong types in fields, malformed bodies, wrong methods, unknown paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .exchanges import Talk
from .generation import CHAT, COMPLETIONS, FRANCE, GENERATE

VALUES: dict[str, Any] = {
    "null": None,
    "text": "nonsense",
    "empty text": "",
    "number": 2.5,
    "negative": -3,
    "huge": 10**30,
    "true": True,
    "empty list": [],
    "list": [{"a": 1}, None],
    "empty object": {},
    "object": {"nonsense": [1]},
}
"""Values of all types, which are put into every field."""
BODIES: dict[str, dict[str, Any]] = {
    "/abort_request": {"rid": "nobody"},
    "/classify": {"text": "a"},
    "/encode": {"text": "a"},
    "/generate": {"text": "The capital", "sampling_params": {"temperature": 0, "max_new_tokens": 2}},
    "/load_lora_adapter": {"lora_name": "a", "lora_path": "nowhere"},
    "/parse_function_call": {"text": "a"},
    "/rerank": {"query": "a", "documents": ["b"]},
    "/separate_reasoning": {"text": "a"},
    "/unload_lora_adapter": {"lora_name": "a"},
    "/update_weights_from_disk": {"model_path": "nowhere"},
    "/v1/batches": {"input_file_id": "x", "endpoint": CHAT, "completion_window": "24h"},
    "/v1/chat/completions": {"messages": FRANCE, "max_tokens": 2, "temperature": 0},
    "/v1/classify": {"input": "a"},
    "/v1/completions": {"prompt": "The capital", "max_tokens": 2, "temperature": 0},
    "/v1/detokenize": {"tokens": [5]},
    "/v1/embeddings": {"input": "a"},
    "/v1/responses": {"input": "a", "max_output_tokens": 2, "temperature": 0, "store": False},
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/v1/tokenize": {"prompt": "a"},
}
"""A valid body for each kind of body in the OpenAPI document, which aliases of the route share."""
NESTED = {
    "SamplingBody": (GENERATE, "sampling_params", False),
    "Message": (CHAT, "messages", True),
    "Tool": (CHAT, "tools", True),
    "StreamOptions": (CHAT, "stream_options", False),
    "MessageItem": ("/v1/responses", "input", True),
    "TextOptions": ("/v1/responses", "text", False),
    "TextFormat": ("/v1/responses", "text.format", False),
    "ReasoningOptions": ("/v1/responses", "reasoning", False),
    "FlatTool": ("/v1/responses", "tools", True),
    "CallItem": ("/v1/responses", "input", True),
    "CallOutputItem": ("/v1/responses", "input", True),
    "Function": (CHAT, "tools.function", False),
}
"""Objects inside bodies: their schema's name, the route, the field, and whether the field is a list of them."""
GOOD: dict[str, dict[str, Any]] = {
    "SamplingBody": {"temperature": 0, "max_new_tokens": 2},
    "Message": {"role": "user", "content": "a"},
    "Tool": {"type": "function", "function": {"name": "f"}},
    "MessageItem": {"role": "user", "content": "a"},
    "FlatTool": {"type": "function", "name": "f"},
    "CallItem": {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "CallOutputItem": {"type": "function_call_output", "call_id": "c", "output": "x"},
    "Function": {"name": "f"},
}
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{nonsense",
    "list": b"[]",
    "text": b'"a"',
    "null": b"null",
    "two values": b"{} {}",
    "invalid UTF-8": b'{"text": "\xff"}',
    "half a surrogate pair": b'{"text": "\\ud800", "prompt": "\\ud800", "input": "\\ud800"}',
    "not a number": b'{"temperature": NaN}',
    "the same key twice": b'{"text": "a", "text": "b", "prompt": "a", "max_tokens": 1, "max_tokens": 2}',
    "deep": b'{"text": ' + b"[" * 500 + b"]" * 500 + b"}",
}
NUMBERS: dict[str, list[Any]] = {
    "temperature": [-1, 1e-9, 3, 1e300],
    "top_p": [0, -0.1, 1.1],
    "top_k": [0, -1, -2, 10**6],
    "min_p": [-0.1, 1.1],
    "frequency_penalty": [-2.1, 2.1],
    "presence_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, 2.1],
    "n": [0, 2000],
    "seed": [-1, 2**63],
    "max_tokens": [-1, 10**6],
    "min_tokens": [-1, 50],
    "logit_bias": [{"x": 1}, {"99999": 1}, {"5": 101}, {"-1": 1}],
    "stop": [["a"] * 100, "a" * 5000, [""], [1]],
    "top_logprobs": [5, 21],
    "logprobs": [6, -1],
    "stop_token_ids": [[-1], [99999], ["a"]],
}
"""Values of the right type that are out of range, by chat's names."""


def ask_wrong_types(talk: Talk, document: Mapping[str, Any]) -> None:
    """Send each of ``VALUES`` in each field of each body of the OpenAPI document."""
    schemas = document["components"]["schemas"]
    with talk.group("wrong types"):
        for path, good in BODIES.items():
            operation = document["paths"][path]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for name, field, value in _spoilt(schemas[schema]):
                talk.post(f"{path} {field}: {name}", path, {**good, field: value})
            for field in sorted(good):
                talk.post(f"{path} without {field}", path, {key: value for key, value in good.items() if key != field})
        for schema, (path, field_path, listed) in NESTED.items():
            for name, field, value in _spoilt(schemas[schema]):
                inner: Any = {**GOOD.get(schema, {}), field: value}
                talk.post(
                    f"{path} {field_path}, {schema}.{field}: {name}", path, _wrapped(path, field_path, listed, inner)
                )


def _spoilt(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for field in sorted(schema["properties"]):
        yield from ((name, field, value) for name, value in VALUES.items())


def _wrapped(path: str, field_path: str, listed: bool, inner: Any) -> dict[str, Any]:
    """Return a valid body with ``inner`` at a path within it."""
    outer, _, within = field_path.partition(".")
    if within == "function":
        inner = [{"type": "function", "function": inner}]
    elif within:
        inner = {within: inner}
    return {**BODIES[path], outer: [inner] if listed else inner}


def ask_out_of_range(talk: Talk) -> None:
    """Send numbers out of range to the routes that generate."""
    names = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
    with talk.group("out of range"):
        for field, values in NUMBERS.items():
            for value in values:
                label = f"{field}={str(value)[:30]}"
                for path in (CHAT, COMPLETIONS, "/v1/responses"):
                    talk.post(f"{path} {label}", path, {**BODIES[path], field: value})
                params = {"temperature": 0, "max_new_tokens": 2, names.get(field, field): value}
                talk.post(f"{GENERATE} {label}", GENERATE, {"text": "The capital", "sampling_params": params})


def ask_malformed(talk: Talk, document: Mapping[str, Any]) -> None:
    """Send bodies that are no JSON objects, other content types, all other methods of every path, and unknown paths."""
    with talk.group("malformed"):
        for path in BODIES:
            for name, raw in MALFORMED.items():
                talk.send(f"{path}: {name}", "POST", path, raw=raw)
            talk.send(f"{path}: no type", "POST", path, raw=b"{}", headers={"Content-Type": "text/plain"})
            talk.send(
                f"{path}: form", "POST", path, raw=b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"}
            )
    with talk.group("wrong methods"):
        for path, operations in document["paths"].items():
            plain_path = path.replace("{", "").replace("}", "")
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
                if method.lower() not in operations:
                    talk.send(f"{method} {path}", method, plain_path)
    with talk.group("unknown paths"):
        for path in (
            "/",
            "/nowhere",
            "/v1",
            "/v1/",
            "/v1/models/",
            "/V1/models",
            "/generate/",
            "//generate",
            "/%00",
            "/v1/nowhere",
        ):
            for method in ("GET", "POST"):
                talk.send(f"{method} {path}", method, path)
