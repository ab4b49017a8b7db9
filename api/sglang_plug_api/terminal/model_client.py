"""A client of a server's OpenAI API that streams answers."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sglang_plug import ConfigError

CONNECT_SECONDS = 10.0
END = "[DONE]"


class AnswerError(Exception):
    """The server refused a request or could not be reached; the text says why."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of a streamed answer."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None


class ModelClient:
    """Sends requests to one server. Close it, or use it in ``with``.

    Args:
        url: the server's address, with or without ``/v1``.
        api_key: sent as bearer token.
        model: the name to ask for; ``None``: the first one that the server lists.
    """

    def __init__(self, url: str, api_key: str | None = None, model: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        try:
            self._client = httpx.Client(
                base_url=f"{url.rstrip('/').removesuffix('/v1')}/v1",
                headers=headers,
                timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            )
            if self._client.base_url.scheme not in ("http", "https") or not self._client.base_url.host:
                raise ConfigError(f"--url {url!r} is not an address such as http://127.0.0.1:30000")
        except httpx.InvalidURL as error:
            raise ConfigError(f"--url {url!r}: {error}") from error
        self._model = model

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def model(self) -> str:
        """The model's name. Raises ``AnswerError`` if the server lists none."""
        if self._model is None:
            self._model = self._first_model()
        return self._model

    def chat(
        self, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Generator[Delta, None, None]:
        """Yield the answer to a conversation as it comes; closing the iterator aborts it. Raises ``AnswerError``."""
        body = {"model": self.model, "messages": list(messages), **parameters}
        for choice in self._stream("/chat/completions", body):
            delta = choice.get("delta") or {}
            yield Delta(delta.get("content") or "", delta.get("reasoning_content") or "", choice.get("finish_reason"))

    def complete(self, prompt: str, parameters: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """Yield the continuation of a text as it comes; closing the iterator aborts it. Raises ``AnswerError``."""
        for choice in self._stream("/completions", {"model": self.model, "prompt": prompt, **parameters}):
            yield Delta(choice.get("text") or "", finish_reason=choice.get("finish_reason"))

    def _first_model(self) -> str:
        try:
            answer = self._client.get("/models", timeout=CONNECT_SECONDS)
        except httpx.HTTPError as error:
            raise AnswerError(self._unreachable(error)) from error
        if answer.status_code != httpx.codes.OK:
            raise AnswerError(_refusal(answer))
        try:
            return str(answer.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise AnswerError(f"{self._client.base_url}models does not list a model; is this an LLM server?") from error

    def _stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            with self._client.stream("POST", path, json={**body, "stream": True}) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    raise AnswerError(_refusal(answer))
                for line in _lines(answer.iter_text()):
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == END:
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        raise AnswerError(_message(event))
                    yield from event.get("choices", ())[:1]
        except httpx.HTTPError as error:
            raise AnswerError(self._unreachable(error)) from error
        except ValueError as error:
            raise AnswerError(f"the server sent what is not JSON: {error}") from error

    def _unreachable(self, error: httpx.HTTPError) -> str:
        return f"no answer from {self._client.base_url}: {error or type(error).__name__}"


def _refusal(answer: httpx.Response) -> str:
    try:
        message = _message(answer.json())
    except ValueError:
        message = answer.text[:200]
    return f"status {answer.status_code}: {message}"


def _message(event: Any) -> str:
    error = event.get("error", event) if isinstance(event, dict) else event
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Divide text that comes in ``chunks`` at line feeds only: other line breaks may stand in JSON."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
    yield rest
