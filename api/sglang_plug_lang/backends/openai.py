"""Backend for OpenAI-compatible APIs: chat completions for messages, completions for text."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.errors import BackendError
from sglang_plug_lang.http_client import JsonClient
from sglang_plug_lang.ir import GenerationOptions, plain
from sglang_plug_lang.templates import ASSISTANT, ChatTemplate, template_for, template_named

from .base import Completion, Prompt, TokenUsage
from .scoring import scored_choices

SAME_NAMES = (
    "n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty"
    " ignore_eos regex min_tokens"
).split()
"""Options whose field has the same name; some are extensions, which a server may refuse."""
OPENAI_URL = "https://api.openai.com/v1"
TEXT_MODELS = re.compile(r"instruct|davinci|babbage")
"""Pattern in the names of OpenAI models that continue text and do not chat."""


class OpenAIEndpoint:
    """A model behind an OpenAI-compatible API.

    Args:
        base_url: URL with the version, such as ``https://api.example.com/v1``.
        model: the model's name on that server.
        api_key: API key, sent as a bearer token.
        is_chat_model: True sends messages to ``/chat/completions``; False sends all text to ``/completions``, which
            ``select`` needs. Text outside of messages goes to ``/completions`` in either case.
        chat_template_name: template that renders messages as text; by default chosen by the model's name.
        chat_template: the template itself.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        is_chat_model: bool = True,
        chat_template_name: str | None = None,
        chat_template: ChatTemplate | None = None,
        verify: bool | str | None = None,
    ) -> None:
        name = chat_template_name
        self.chat_template = chat_template or (template_for(model) if name is None else template_named(name))
        self.model, self.is_chat_model = model, is_chat_model
        self._client = JsonClient(base_url, api_key, verify)
        self.token_usage = TokenUsage()

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """Return the whole continuation."""
        path, body = self._request(prompt, options)
        answer = self._client.post(path, body)
        self.token_usage.add(answer.get("usage") or {})
        first, *others = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        meta = _meta(answer, first, answer.get("usage"))
        return Completion(_text(first, "message"), meta, tuple(_text(choice, "message") for choice in others))

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """Yield the continuation in pieces."""
        path, body = self._request(prompt, options)
        last: dict[str, Any] = {}
        for event in self._client.events(path, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            choice = event["choices"][0] if event.get("choices") else {}
            last = {**last, **{name: value for name, value in choice.items() if value is not None}}
            self.token_usage.add(event.get("usage") or {})
            yield Completion(_text(choice, "delta"), _meta(event, last, event.get("usage")))

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """Return the likeliest choice, by the log-probabilities of an echoed prompt from ``/completions``."""
        if self._chats(prompt):
            raise BackendError("select needs log-probabilities of the prompt: use is_chat_model=False")
        ids: dict[str, int] = {}
        rows = self._echoed([prompt.text + choice for choice in choices], temperature, ids)
        starts = [sum(1 for offset in row["text_offset"] if offset < len(prompt.text)) for row in rows]
        answers = [_scores(row, ids) for row in rows]
        scored = scored_choices(choices, answers, min(starts))
        if method.needs_unconditional:
            rows = self._echoed(choices, temperature, ids)
            scored = [
                dataclasses.replace(choice, unconditional=tuple(value or 0.0 for value in row["token_logprobs"]))
                for choice, row in zip(scored, rows, strict=True)
            ]
        return method.decide(scored)

    def flush_cache(self) -> bool:
        """Raise ``BackendError``, since this API has no such call."""
        raise BackendError("an OpenAI-compatible API cannot flush its cache: use RuntimeEndpoint")

    def get_server_info(self) -> dict[str, Any]:
        """Return the list of models."""
        info: dict[str, Any] = self._client.get("/models")
        return info

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _chats(self, prompt: Prompt) -> bool:
        return self.is_chat_model and prompt.role is not None

    def _request(self, prompt: Prompt, options: GenerationOptions) -> tuple[str, dict[str, Any]]:
        body = {"model": self.model, **_fields(options)}
        if self._chats(prompt):
            return "/chat/completions", {**body, **_length(options, "max_completion_tokens"), **_messages(prompt)}
        if prompt.images:
            raise BackendError("completions take no images: use messages and is_chat_model=True")
        stop = body.get("stop") or []
        ends = self.chat_template.stop if prompt.role is not None else ()
        if ends:
            body["stop"] = [*([stop] if isinstance(stop, str) else stop), *ends]
        if "logprobs" in body:
            body["logprobs"] = body.pop("top_logprobs", None) or 1
        return "/completions", {**body, **_length(options, "max_tokens"), "prompt": prompt.text}

    def _echoed(self, texts: Sequence[str], temperature: float, ids: dict[str, int]) -> list[dict[str, Any]]:
        body = {"model": self.model, "prompt": list(texts), "max_tokens": 0, "echo": True, "logprobs": 1}
        answer = self._client.post("/completions", {**body, "temperature": temperature})
        self.token_usage.add(answer.get("usage") or {})
        rows: list[dict[str, Any]] = []
        for choice in sorted(answer["choices"], key=lambda item: int(item["index"])):
            if not choice.get("logprobs"):
                raise BackendError("the server gave no log-probabilities of the prompt, which select needs")
            rows.append(choice["logprobs"])
            for token in choice["logprobs"]["tokens"]:
                ids.setdefault(token, len(ids))
        return rows


def _scores(row: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return echoed log-probabilities in the format of ``/generate``."""
    entries = [(value, ids[token], token) for value, token in zip(row["token_logprobs"], row["tokens"], strict=True)]
    return {"meta_info": {"input_token_logprobs": entries, "prompt_tokens": len(entries)}}


def _fields(options: GenerationOptions) -> dict[str, Any]:
    if options.logprob_start_len is not None and options.logprob_start_len >= 0:
        raise BackendError("logprob_start_len is not part of this API: use RuntimeEndpoint")
    fields = {name: plain(value) for name in SAME_NAMES if (value := getattr(options, name)) is not None}
    if options.json_schema is not None:
        schema = {"name": "answer", "schema": _schema(options.json_schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if options.return_logprob:
        fields["logprobs"] = True
        if options.top_logprobs_num:
            fields["top_logprobs"] = options.top_logprobs_num
    return fields


def _length(options: GenerationOptions, name: str) -> dict[str, int]:
    return {} if options.max_tokens is None else {name: options.max_tokens}


def _schema(schema: str | Mapping[str, Any]) -> Any:
    import json

    return json.loads(schema) if isinstance(schema, str) else dict(schema)


def _messages(prompt: Prompt) -> dict[str, Any]:
    if prompt.role != ASSISTANT:
        raise BackendError(
            f"gen() must be inside of assistant(...) for a chat model; it is inside of {prompt.role}(...)"
        )
    messages = [dict(message) for message in prompt.messages]
    if not prompt.begun:
        return {"messages": messages}
    messages.append({"role": ASSISTANT, "content": prompt.begun})
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


def OpenAI(
    model_name: str,
    is_chat_model: bool | None = None,
    chat_template_name: str | None = None,
    *,
    chat_template: ChatTemplate | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> OpenAIEndpoint:
    """Return an endpoint for a model of OpenAI, under the name that programs for SGLang use.

    Args:
        model_name: OpenAI's name of the model.
        is_chat_model: see ``OpenAIEndpoint``; ``None`` decides by the name.
        chat_template_name, chat_template: see ``OpenAIEndpoint``.
        base_url: URL of another server; ``None`` takes ``$OPENAI_BASE_URL``, or OpenAI's own.
        api_key: the API key; ``None`` takes ``$OPENAI_API_KEY``.
    """
    return OpenAIEndpoint(
        base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL,
        model_name,
        api_key or os.environ.get("OPENAI_API_KEY") or None,
        is_chat_model=TEXT_MODELS.search(model_name) is None if is_chat_model is None else is_chat_model,
        chat_template_name=chat_template_name,
        chat_template=chat_template,
    )


def _text(choice: Mapping[str, Any], key: str) -> str:
    text = choice.get("text") if "text" in choice else (choice.get(key) or {}).get("content")
    return text or ""


def _meta(answer: Mapping[str, Any], choice: Mapping[str, Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
    meta = {"id": answer.get("id"), "finish_reason": choice.get("finish_reason")}
    if choice.get("logprobs"):
        meta["logprobs"] = choice["logprobs"]
    return {**meta, **{name: (usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")}}
