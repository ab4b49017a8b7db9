"""HTTP client for JSON APIs."""

from __future__ import annotations

import json
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import httpx

from .errors import BackendError

CONNECT_SECONDS = 30.0


class JsonClient:
    """Calls one server; errors of the server or of the connection become ``BackendError``."""

    def __init__(self, base_url: str, api_key: str | None, verify: bool | str | None) -> None:
        self.base_url = base_url.rstrip("/")
        self._client = httpx.Client(
            headers=bearer(api_key),
            verify=certificates(verify),
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        weakref.finalize(self, self._client.close)

    def get(self, path: str) -> Any:
        """Send a ``GET`` request and return the decoded response."""
        return self._request("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a ``POST`` request and return the decoded response."""
        return self._request("POST", path, body)

    def status(self, method: str, path: str) -> int:
        """Return the status of a response without JSON."""
        try:
            return self._client.request(method, self.base_url + path).status_code
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the server-sent events of a ``POST``; closing the generator early ends the request."""
        try:
            with self._client.stream("POST", self.base_url + path, json=body) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                for line in _lines(answer.iter_text()):
                    data = line.removeprefix("data:").strip()
                    if line.startswith("data:") and data != "[DONE]":
                        yield _event(data)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            answer = self._client.request(method, self.base_url + path, json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer)
        try:
            return answer.json()
        except ValueError as error:
            raise BackendError(f"{self.base_url}{path} did not answer with JSON: {answer.text[:200]!r}") from error

    def _unreachable(self, error: httpx.HTTPError) -> BackendError:
        return BackendError(f"no answer from {self.base_url}: {error or type(error).__name__}")


def bearer(api_key: str | None) -> dict[bytes, bytes]:
    """Return the header with an API key."""
    return {} if api_key is None else {b"Authorization": f"Bearer {api_key}".encode()}


def certificates(verify: bool | str | None) -> Any:
    """Return the trusted certificates as httpx takes them; a text is the name of a file."""
    if isinstance(verify, str):
        import ssl

        return ssl.create_default_context(cafile=verify)
    return True if verify is None else verify


def _event(data: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(data)
    error = event.get("error")
    if error:
        details = error if isinstance(error, dict) else {"message": str(error)}
        codes = [code for code in (event.get("code"), details.get("code")) if isinstance(code, int)]
        raise BackendError(str(details.get("message", error)), codes[0] if codes else None)
    return event


def _refusal(answer: httpx.Response) -> BackendError:
    """Return an error with the server's message, whatever the format of the body."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    error = body.get("error", body) if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return BackendError(str(message or answer.text[:500] or answer.reason_phrase), answer.status_code)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Divide text that comes in ``chunks`` at line feeds only: other line breaks may stand in JSON."""
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
    yield rest
