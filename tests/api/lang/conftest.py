"""Fixtures: a backend without a model, and a server whose answers the test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sglang_plug_lang import BackendError, Completion, Prompt, set_default_backend
from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.ir import GenerationOptions
from sglang_plug_lang.templates import template_named

TIMEOUT = 240.0


class FakeBackend:
    """A backend that answers ``reply(prompt)``, and records prompts and the maximum number of concurrent calls."""

    def __init__(self, template: str = "chatml") -> None:
        self.chat_template = template_named(template)
        self.prompts: list[Prompt] = []
        self.options: list[GenerationOptions] = []
        self.reply: Callable[[Prompt], str] = lambda prompt: f"<{len(self.prompts)}>"
        self.gather = threading.Barrier(1)
        self.meta_info: dict[str, Any] = {}

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        self.prompts.append(prompt)
        self.options.append(options)
        self.gather.wait(TIMEOUT)
        text = self.reply(prompt)
        return Completion(text, {"length": len(text), **self.meta_info}, ("other",) * ((options.n or 1) - 1))

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        for index, character in enumerate(self.generate(prompt, options).text):
            if character == "!":
                raise BackendError("broken in the middle", 503)
            yield Completion(character, {"length": index + 1, "output_token_logprobs": list(range(index + 1))})

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        self.prompts.append(prompt)
        return Decision(max(choices), {"method": method.name, "temperature": temperature})

    def flush_cache(self) -> bool:
        return True

    def get_server_info(self) -> dict[str, Any]:
        return {"prompts": len(self.prompts)}


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """A fake backend, which is the default backend during the test."""
    fake = FakeBackend()
    set_default_backend(fake)
    yield fake
    set_default_backend(None)


class Answering(ThreadingHTTPServer):
    """A server with an answer for each path: a status and a body, or a function of the request's body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, Any, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer(json.loads(raw) if raw else None)

    def _answer(self, body: Any) -> None:
        self.server.requests.append((self.path, body, dict(self.headers)))
        answer = self.server.answers.get(self.path, (404, {"error": {"message": "no such path"}}))
        status, content = answer(body) if callable(answer) else answer
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Suppress the log."""


@pytest.fixture
def answering() -> Iterator[Answering]:
    """A server whose answers the test decides."""
    server = Answering()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
