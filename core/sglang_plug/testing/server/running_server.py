"""A server that a test starts as a user does, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

START_SECONDS = 180.0
REQUEST_SECONDS = 60.0
READY = " at http://"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whole."""

    status: int
    content_type: str
    body: bytes
    seconds: float
    finished: float
    """Time of ``time.monotonic()`` at its end."""

    def json(self) -> Any:
        """Return the content. Raises ``ValueError`` if it is not JSON, which has no ``NaN`` and no ``Infinity``."""
        return json.loads(self.body, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server's address, the key that its clients send, and how long they wait for an answer."""

    url: str
    key: str | None = None
    timeout: float = REQUEST_SECONDS
    """Seconds without a byte of the answer after which a request has failed."""

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        with_key: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and return the answer. Raises ``OSError`` or ``HTTPException`` if there is none in time."""
        sent = {"Content-Type": "application/json", **(headers or {})} if body is not None else dict(headers or {})
        if with_key and self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=self.timeout)
        began = time.monotonic()
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        ended = time.monotonic()
        return Answer(response.status, response.headers.get_content_type(), content, ended - began, ended)

    def abandon(self, method: str, path: str, body: bytes | None) -> None:
        """Send a request and close the connection without reading the answer."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=self.timeout)
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, path, body, headers)
        finally:
            connection.close()


@contextmanager
def running_server(
    options: Sequence[str], key: str | None, timeout: float = REQUEST_SECONDS
) -> Iterator[RunningServer]:
    """Start ``sglang-plug serve`` on a free port of this machine, and stop it at the end.

    ``timeout``: that of ``RunningServer``. Raises ``AssertionError`` with the end of its log if it does not get ready.
    """
    flags = ["--host", "127.0.0.1", "--port", "0", *(["--api-key", key] if key is not None else []), *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "sglang_plug", "serve", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    log: list[str] = []
    assert process.stderr is not None and process.stdout is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reader.start()
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        ready = next((line for line in process.stdout if READY in line), None)
        timer.cancel()
        if ready is None:
            process.wait()
            reader.join(10)
            raise AssertionError(f"the server did not start with {' '.join(options)}:\n{''.join(log[-30:])}")
        yield RunningServer(ready.split(" at ")[1].strip(), key, timeout)
    finally:
        timer.cancel()
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()
