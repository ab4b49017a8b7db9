"""The servers that are recorded, each with its options and its requests."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.vision_models import QWEN_IMAGE, make_vision_model, png

from .exchanges import Talk, uncovered
from .generation import CHAT, COMPLETIONS, FRANCE, GENERATE, PIXEL, PROMPT, SAMPLED, STORY, ask_generation
from .models import make_adapters, make_pooling, make_recurrent
from .refusals import ask_malformed, ask_out_of_range, ask_wrong_types
from .routes import (
    POOLED,
    ask_administration,
    ask_information,
    ask_metrics,
    ask_pooling,
    ask_tokens,
    ask_weights,
)
from .serving import Tree
from .stored import ask_responses, ask_storage
from .structured import ask_constraints, ask_tools

EXEMPT: dict[str, str] = {}
"""Routes of the OpenAPI document that no request is sent to, with the reason; no route ends the server."""


@dataclass(frozen=True)
class Recorded:
    """A server that is recorded, and the function that sends its requests."""

    name: str
    flags: tuple[str, ...]
    ask: Callable[[Talk], None]


def recorded(tree: Tree, models: Path) -> Iterator[Recorded]:
    """Yield every server; its checkpoint is written below ``models`` just before."""
    yield Recorded("demo", (), ask_everything)
    seeded = ("--preferred-sampling-params", '{"sampling_seed": 1, "max_new_tokens": 4}')
    yield Recorded("refusals", seeded, ask_to_be_refused)
    adapters = make_adapters(models / "adapters")
    loaded = ("--lora-paths", f"red={adapters['red']}", "--enable-lora")
    yield Recorded("adapters", loaded, lambda talk: ask_adapters(talk, adapters))
    keys = ("--api-key", "secret", "--admin-api-key", "admin", "--served-model-name", "served", "--strict-model-name")
    yield Recorded("keys", keys, ask_with_keys)
    drafter = ("--speculative-algorithm", "ngram", "--speculative-num-draft-tokens", "5", "--set", "ngram.min_match=1")
    yield Recorded("drafts", drafter, ask_drafts)
    reasoning: tuple[str, ...] = ("--log-level", "error")
    reasoning += ("--reasoning-parser", "deepseek-r1", "--enable-cache-report", "--tool-call-parser", "llama3")
    reasoning += ("--sampling-defaults", "openai", "--max-running-requests", "4")
    yield Recorded("reasoning", reasoning, ask_reasoning)
    yield Recorded("tokens-only", ("--skip-tokenizer-init",), ask_token_ids)
    limits: tuple[str, ...] = ("--prefix-cache", "none")
    limits += ("--max-request-bytes", "2000", "--max-sequences-per-request", "4", "--context-length", "64")
    limits += ("--max-stored-responses", "1", "--max-files", "1", "--grammar-backend", "none")
    yield Recorded("limits", limits, ask_limits)
    encoder = make_pooling(models / "bert", "bert", tokenizer=True)
    yield Recorded("embedding", ("--model-path", str(encoder), "--is-embedding"), ask_pooling_model)
    reranker = make_pooling(models / "reranker", "bert-reranker", tokenizer=True)
    yield Recorded("reranker", ("--model-path", str(reranker)), ask_pooling_model)
    classifier = make_pooling(models / "classifier", "qwen2-classifier", tokenizer=True)
    yield Recorded("classifier", ("--model-path", str(classifier)), ask_pooling_model)
    yield Recorded("recurrent", ("--model-path", str(make_recurrent(models / "recurrent"))), ask_small)
    vision = make_vision_model("qwen2.5-vl", models / "vision").path
    yield Recorded("vision", ("--model-path", str(vision), "--dtype", "float32"), ask_about_images)


def ask_everything(talk: Talk) -> None:
    """Send all requests for the demo model with default options. Raises ``ValueError`` if a route is not covered."""
    document = talk.quietly("GET", "/openapi.json").json()
    ask_information(talk)
    ask_generation(talk)
    ask_constraints(talk)
    ask_tools(talk)
    ask_responses(talk)
    ask_storage(talk)
    ask_tokens(talk)
    ask_pooling(talk)
    ask_administration(talk)
    ask_metrics(talk)
    ask_weights(talk, talk.quietly("GET", "/model_info").field("model_path"))
    missing = [route for route in uncovered(talk.statuses, document) if route not in EXEMPT]
    if missing:
        raise ValueError(f"no request asks for: {', '.join(missing)}")


def ask_to_be_refused(talk: Talk) -> None:
    """Send faulty requests; those that are served nevertheless are short and seeded."""
    document = talk.quietly("GET", "/openapi.json").json()
    ask_out_of_range(talk)
    ask_wrong_types(talk, document)
    ask_malformed(talk, document)


def ask_small(talk: Talk) -> None:
    """Send a few requests to each route that generates."""
    with talk.group("generation"):
        for name, more in {"greedy": {"temperature": 0}, "sampled": SAMPLED, "two": {**SAMPLED, "n": 2}}.items():
            talk.both(f"chat, {name}", CHAT, {"messages": FRANCE, "max_tokens": 10, "ignore_eos": True, **more})
            talk.both(f"completion, {name}", COMPLETIONS, {"prompt": PROMPT, "max_tokens": 10, "logprobs": 2, **more})
        params = {"temperature": 0, "max_new_tokens": 10}
        for name, text in {"one": PROMPT, "long": "word and more " * 100, "long again": "word and more " * 110}.items():
            body = {"text": text, "sampling_params": params, "return_logprob": True, "logprob_start_len": 0}
            talk.both(f"generate, {name}", GENERATE, {"text": text, "sampling_params": params})
            talk.post(f"generate, {name}, log-probabilities", GENERATE, body)
        talk.post("regex", GENERATE, {"text": PROMPT, "sampling_params": {**params, "regex": "[a-z]{4,9}"}})
        talk.both("response", "/v1/responses", {"input": "a", "max_output_tokens": 6, "temperature": 0})
    ask_information(talk)


def ask_adapters(talk: Talk, folders: dict[str, Path]) -> None:
    """Ask for adapters by name, and load and unload them."""
    ask_small(talk)
    with talk.group("adapters"):
        chat = {"messages": FRANCE, "max_tokens": 8, "temperature": 0}
        short = {"input": "a", "temperature": 0, "max_output_tokens": 8}
        for model in ("red", "sglang-plug-demo:red", "sglang-plug-demo", "blue"):
            talk.both(f"chat with {model}", CHAT, {**chat, "model": model})
            talk.post(f"response with {model}", "/v1/responses", {**short, "model": model})
        params = {"temperature": 0, "max_new_tokens": 6}
        body = {"text": [PROMPT] * 2, "lora_path": ["red", None], "sampling_params": params}
        talk.post("generate with and without", GENERATE, body)
        for name in ("load", "load again"):
            talk.post(name, "/load_lora_adapter", {"lora_name": "blue", "lora_path": str(folders["blue"])})
        talk.get("models", "/v1/models")
        talk.both("chat with both", CHAT, {**chat, "model": "blue"})
        talk.post("load nowhere", "/load_lora_adapter", {"lora_name": "x", "lora_path": "/nowhere"})
        talk.post("load no adapter", "/load_lora_adapter", {"lora_name": "x", "lora_path": str(folders["blue"].parent)})
        for name in ("unload", "unload again"):
            talk.post(name, "/v1/unload_lora_adapter", {"lora_name": "blue"})
        talk.post("chat with the unloaded", CHAT, {**chat, "model": "blue"})


def ask_with_keys(talk: Talk) -> None:
    """Send requests without an API key, with wrong keys, with the key, and with the admin key."""
    keys = {"no key": {}, "wrong key": "Bearer wrong", "other scheme": "Basic eA==", "key": "Bearer secret"}
    keys |= {"admin key": "Bearer admin", "lower case": "bearer secret"}
    paths = "/health /ping /ready /readyz /v1/models /model_info /server_info /metrics /openapi.json /docs /v1/loads"
    paths += " /nowhere"
    for name, value in keys.items():
        talk.headers = {"Authorization": value} if isinstance(value, str) else {}
        with talk.group(name):
            for path in [*paths.split(), "/flush_cache"]:
                if path != "/metrics" or name in ("no key", "wrong key"):
                    talk.get(path, path)
            talk.post("chat", CHAT, {"messages": FRANCE, "max_tokens": 4, "temperature": 0, "model": "served"})
            talk.post("chat, stream", CHAT, {"messages": FRANCE, "max_tokens": 4, "temperature": 0, "stream": True})
            talk.post("another model", CHAT, {"messages": FRANCE, "max_tokens": 4, "model": "another"})
            talk.post("weights", "/update_weights", {"model_path": "/nowhere"})
            talk.post("abort all", "/abort_request", {"abort_all": True})
            talk.get("files", "/v1/files")
            talk.send(
                "preflight", "OPTIONS", CHAT, headers={"Origin": "http://a", "Access-Control-Request-Method": "POST"}
            )
            talk.get("another host", "/v1/models", headers={"Host": "evil.example"})
            talk.get("another origin", "/v1/models", headers={"Origin": "http://evil.example"})


def ask_drafts(talk: Talk) -> None:
    """Ask for repetitive outputs, which n-gram drafts predict."""
    ask_small(talk)
    repeated = "one two three four five six seven. " * 6 + "Again: one two three"
    with talk.group("repeated"):
        repeating: dict[str, dict[str, Any]] = {
            "loop": {"temperature": 0, "logit_bias": {"50": 100}, "ignore_eos": True},
            "greedy": {"temperature": 0, "ignore_eos": True},
            "sampled": {"temperature": 1.5, "logit_bias": {"50": 6, "51": 5}, "sampling_seed": 2},
            "penalty": {"temperature": 0, "frequency_penalty": 0.3},
            "stop": {"temperature": 0, "stop": ["six"]},
            "regex": {"temperature": 0, "regex": "(one|two|three| )+"},
        }
        for name, params in repeating.items():
            talk.both(name, GENERATE, {"text": repeated, "sampling_params": {"max_new_tokens": 30, **params}})
            body = {"text": repeated, "sampling_params": {"max_new_tokens": 30, **params}, "return_logprob": True}
            talk.both(f"{name}, log-probabilities", GENERATE, body)


def ask_reasoning(talk: Talk) -> None:
    """Ask for chats and responses of a server with a reasoning parser."""
    ask_small(talk)
    thoughtful = {"logit_bias": {}, "max_tokens": 60, "temperature": 0}
    with talk.group("reasoning"):
        chats: dict[str, dict[str, Any]] = {
            "plain": {},
            "ends": {"regex": "Hm\\.</think>Yes\\."},
            "not separated": {"separate_reasoning": False, "regex": "Hm\\.</think>Yes\\."},
            "not streamed": {"stream_reasoning": False},
            "no effort": {"reasoning_effort": "none"},
            "schema": {"response_format": {"type": "json_object"}, "max_tokens": 120},
        }
        for name, more in chats.items():
            talk.both(name, CHAT, {"messages": STORY, **thoughtful, **more})
        efforts: dict[str, Any] = {"response": {}, "response with effort": {"reasoning": {"effort": "high"}}}
        for name, more in efforts.items():
            talk.both(name, "/v1/responses", {"input": "Why?", "max_output_tokens": 40, "temperature": 0, **more})
        talk.post("separate", "/separate_reasoning", {"text": "Hm.</think>Yes."})


def ask_token_ids(talk: Talk) -> None:
    """Send requests to a server without a tokenizer."""
    with talk.group("token ids"):
        talk.both(
            "ids", GENERATE, {"input_ids": [304, 284], "sampling_params": {"temperature": 0, "max_new_tokens": 5}}
        )
        talk.both("text", GENERATE, {"text": PROMPT})
        talk.post("stop", GENERATE, {"input_ids": [304], "sampling_params": {"stop": "a", "max_new_tokens": 5}})
        talk.both("chat", CHAT, {"messages": FRANCE})
        talk.both("completion", COMPLETIONS, {"prompt": [304, 284], "max_tokens": 4, "temperature": 0})
        talk.post("tokenize", "/tokenize", {"prompt": "a"})
        talk.post("response", "/v1/responses", {"input": "a"})
    ask_information(talk)


def ask_limits(talk: Talk) -> None:
    """Send requests to a server with low limits."""
    ask_small(talk)
    with talk.group("limits"):
        talk.post("large body", GENERATE, {"text": "a" * 3000})
        talk.post("many outputs", GENERATE, {"text": "a", "sampling_params": {"n": 5, "max_new_tokens": 1}})
        talk.post("many prompts", COMPLETIONS, {"prompt": ["a"] * 5, "max_tokens": 1})
        talk.both("long prompt", CHAT, {"messages": [{"role": "user", "content": "word " * 100}]})
        talk.both("long output", CHAT, {"messages": FRANCE, "max_tokens": 100, "temperature": 0})
        for number in range(2):
            talk.post(f"response {number}", "/v1/responses", {"input": "a", "max_output_tokens": 2, "temperature": 0})


def ask_pooling_model(talk: Talk) -> None:
    """Ask a pooling model for embeddings, scores and labels, and for tasks that it refuses."""
    ask_pooling(talk)
    with talk.group("generation"):
        talk.post("chat", CHAT, {"messages": FRANCE})
        talk.post("completion", COMPLETIONS, {"prompt": "a"})
        talk.post("generate", GENERATE, {"text": "a"})
        talk.post("response", "/v1/responses", {"input": "a"})
        for path, body in {path: body for path, body in POOLED.values()}.items():
            talk.post(
                f"{path}, too long",
                path,
                {key: "word " * 600 if value == "a" else value for key, value in body.items()},
            )
    ask_tokens(talk)
    ask_information(talk)


def ask_about_images(talk: Talk) -> None:
    """Send requests to a vision-language model."""
    ask_small(talk)
    images = {"wide": png(64, 24, 1), "tall": png(30, 70, 2), "broken": b"no image", "tiny": png(1, 1, 3)}
    with talk.group("images"):
        for name, data in images.items():
            url = "data:image/png;base64," + base64.b64encode(data).decode()
            part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
            content = [part, {"type": "text", "text": "What is in the image?"}]
            request = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "ignore_eos": True}
            talk.both(f"chat, {name}", CHAT, {**request, "temperature": 0})
            talk.both(f"chat, {name}, sampled", CHAT, {**request, **SAMPLED, "logprobs": True, "top_logprobs": 2})
            body = {
                "text": f"{QWEN_IMAGE}Who?",
                "image_data": url,
                "sampling_params": {"temperature": 0, "max_new_tokens": 8},
            }
            talk.both(f"generate, {name}", GENERATE, body)
            item = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]
            request = {"input": [{"role": "user", "content": item}], "temperature": 0, "max_output_tokens": 8}
            talk.both(f"response, {name}", "/v1/responses", request)
        for url in ("https://example.com/a.png", "file:///etc/passwd", "", "data:image/png,plain", PIXEL):
            part = {"type": "image_url", "image_url": {"url": url}}
            talk.post(
                f"address {url[:40]}",
                CHAT,
                {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2, "temperature": 0},
            )
        talk.post("no placeholder", GENERATE, {"text": "none", "image_data": PIXEL})
