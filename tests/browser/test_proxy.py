"""Tests of the pages behind a proxy that adds a prefix to the paths of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from .page import Page

PREFIX = "/llm"


@pytest.fixture
def proxied(server: Any) -> Iterator[str]:
    """The address of a proxy that serves the shared server below a prefix."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward()

        def do_POST(self) -> None:
            self.forward()

        def forward(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = self.path.removeprefix(PREFIX)
            answer = httpx.request(self.command, server.url + path, headers=dict(self.headers), content=body)
            self.send_response(answer.status_code)
            for name in ("content-type", "content-security-policy", "etag"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *values: Any) -> None:
            """Suppress the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}{PREFIX}"
        proxy.shutdown()
        thread.join()


def test_all_pages_find_the_server_and_each_other(page: Page, proxied: str) -> None:
    page.open_chat(proxied)
    assert "complete" in page.send("What is the capital of Peru?").text
    page.script("document.getElementById('code').open = true")
    assert f"{proxied}/v1/chat/completions" in page.id("code-text").text
    page.follow("Operations")
    page.until(lambda: page.all("#slots li"), "the operations page")
    page.follow("API")
    page.until(lambda: page.all(".route"), "the page of the routes")
    page.follow("Playground")
    page.until(lambda: page.all("#message"), "the playground")
    page.until(lambda: page.id("message").is_displayed(), "the chat")
