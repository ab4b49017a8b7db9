"""Sends requests to a server, one after the other, and records each with its answer."""

from __future__ import annotations

import base64
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from .placeholders import Placeholders

TIMEOUT = 120.0
"""Maximum seconds until an answer is complete."""
LONGEST_REQUEST = 4000
"""Maximum number of recorded characters of a request's body."""


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes

    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.content)

    def field(self, name: str) -> Any:
        """Return a field of the body, or ``"none"``: an unexpected answer must not end the recording."""
        try:
            content = self.json()
        except ValueError:
            return "none"
        return content.get(name, "none") if isinstance(content, dict) else "none"


class Output:
    """Writes records as JSON lines; each name may occur once."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.names: set[str] = set()

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a record."""
        if name in self.names:
            raise ValueError(f"there are two exchanges of the name {name!r}")
        self.names.add(name)
        self._file.write(json.dumps({"name": name, **record}, ensure_ascii=False) + "\n")


class Talk:
    """Sends requests to one server and records the exchanges."""

    def __init__(self, server: str, url: str, output: Output, placeholders: Placeholders) -> None:
        self._server, self._output, self._placeholders = server, output, placeholders
        self._host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
        self._port = int(port)
        self._group = ""
        self.statuses: dict[tuple[str, str], list[int]] = {}
        """Status codes by method and path, without query."""
        self.headers: dict[str, str] = {}
        """Headers of every request."""

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Prefix the names of exchanges with ``name``, and begin with an empty prefix cache."""
        self.quietly("POST", "/flush_cache")
        self._group = f"{name}/"
        yield
        self._group = ""

    def get(self, name: str, path: str, **more: Any) -> Answer:
        """Send a GET request."""
        return self.send(name, "GET", path, **more)

    def post(self, name: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send a POST request with a JSON body."""
        return self.send(name, "POST", path, body, **more)

    def both(self, name: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a generation request twice, the second time with ``stream``."""
        self.post(name, path, body)
        self.post(f"{name}, streamed", path, {**body, "stream": True})

    def send(
        self,
        name: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request with a JSON ``body`` or the bytes ``raw``, and record the exchange."""
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {**({"Content-Type": "application/json"} if content is not None else {}), **self.headers}
        sent |= headers or {}
        answer = self._ask(method, path, content, sent)
        self.statuses.setdefault((method, path.partition("?")[0]), []).append(answer.status)
        self._record(name, method, path, (content or b"").decode(errors="replace"), headers or {}, answer)
        return answer

    def quietly(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request that is not recorded."""
        content = None if body is None else json.dumps(body).encode()
        return self._ask(method, path, content, {"Content-Type": "application/json", **self.headers})

    def _ask(self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body=content, headers=dict(headers))
            response = connection.getresponse()
            try:
                body = response.read()
            except http.client.IncompleteRead as error:
                body = error.partial + b"<the connection ended here>"
            return Answer(response.status, list(response.headers.items()), body)
        finally:
            connection.close()

    def _record(self, name: str, method: str, path: str, sent: str, headers: Mapping[str, str], answer: Answer) -> None:
        heads = "\n".join(f"{key}: {self._stable(key, value, answer)}" for key, value in answer.headers)
        kind = next((value for key, value in answer.headers if key.lower() == "content-type"), "")
        binary = _text(answer.content) is None
        body = base64.b64encode(answer.content).decode() if binary else answer.content.decode()
        shown_path, request_body, heads, body = self._placeholders.exchange(
            path, path, sent[:LONGEST_REQUEST], heads, body
        )
        record: dict[str, Any] = {"method": method, "path": shown_path, "request": request_body}
        if headers:
            record["request headers"] = dict(headers)
        record |= {"status": answer.status, "headers": heads.split("\n")}
        if kind.startswith("text/event-stream"):
            record["events"] = body.split("\n\n")
        else:
            record["base64" if binary else "body"] = body
        self._output.write(f"{self._server}/{self._group}{name}", record)

    @staticmethod
    def _stable(key: str, value: str, answer: Answer) -> str:
        """Return the value of a header, with a placeholder for the length of the body, which ids and times change."""
        if key.lower() == "allow":  # methods in any order
            return ", ".join(sorted(value.split(", ")))
        right = key.lower() == "content-length" and value == str(len(answer.content))
        return "<length of the body>" if right and answer.content else value


def _text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def uncovered(statuses: Mapping[tuple[str, str], list[int]], document: Mapping[str, Any]) -> list[str]:
    """Return the methods and paths of an OpenAPI document that no request was sent to."""
    missing = []
    for path, operations in document["paths"].items():
        fits = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
        for method in (operation.upper() for operation in operations if operation in METHODS):
            if not any(verb == method and fits.fullmatch(where) for verb, where in statuses):
                missing.append(f"{method} {path}")
    return missing


METHODS = ("get", "put", "post", "delete", "patch", "options", "head", "trace")
