"""Conformance test of routes: requests to a server that serves them, well-formed, malformed and many at once."""

from __future__ import annotations

import http.client
import itertools
import json
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from .abandoned import abandon, check_ended, check_idle
from .answers import check_content, check_refusal
from .running_server import REQUEST_SECONDS, Answer, RunningServer, running_server

ROUNDS = 3
AT_ONCE = 8
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SLOW = 0.5
"""Seconds of a request from which on it is tested whether it blocks others."""
DEEP = 20_000
MALFORMED: dict[str, bytes] = {
    "an empty body": b"",
    "text that is not JSON": b"hello",
    "a JSON array": b"[]",
    "null": b"null",
    "a number": b"12",
    "invalid UTF-8": b'{"a": "\xff\xfe"}',
    "a list nested 20000 deep": b"[" * DEEP + b"]" * DEEP,
    "an object nested 20000 deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
}
STRANGE_VALUES: tuple[Any, ...] = (None, True, -1, 10**30, 1e308, "", "\ud800", "x" * 5000, [], [None], {}, {"a": [1]})
"""Values that replace each field."""

Request = tuple[str, str, Any]
"""Method, path, and body: an object that is sent as JSON, bytes, or ``None``."""


def check_route(
    name: str,
    requests: Sequence[Request],
    *,
    server: str | None = None,
    key: str | None = None,
    public: bool = False,
    options: Sequence[str] = ("--device", "cpu"),
    idle_seconds: float = 30.0,
    timeout: float = REQUEST_SECONDS,
) -> None:
    """Send requests to a server: those of the caller, all at once, with malformed bodies, other methods, without a key.

    Every request of the caller is answered with a status below 300 and what its content type says, the same each time
    and whatever else is served; a malformed body is refused with 4xx and a JSON object that says why; a slow request
    does not block others, nor does one that a strange value makes slow. When clients have left, the server must be
    healthy and serve nothing any more; outputs that requests limit (``max_tokens``) are not generated to their ends.

    Args:
        name: the name an installed plugin declared the routes under.
        requests: triples of method, path and body, at least one for each path, which need no more than a model.
        server: address of a server that serves the routes; ``None``: one is started, with the embedded model.
        key: the key of ``server``, which must have been started with ``--api-key``.
        public: True for routes that are declared with ``auth="public"``.
        options: options of the server that is started, besides ``--host``, ``--port`` and ``--api-key``.
        idle_seconds: time after which the server must serve nothing any more once its clients have left.
        timeout: seconds without a byte of the answer after which a request has failed. Give more for a slow model.

    Raises:
        AssertionError: names the first request that fails, and how.
    """
    assert requests, f"give check_route at least one request that {name!r} answers"
    if server is None:
        key = secrets.token_hex(8)
    started = (
        running_server(options, key, timeout) if server is None else nullcontext(RunningServer(server, key, timeout))
    )
    with started as running:
        _check_known(running, name)
        examples = [_Example.of(request) for request in requests]
        for example in examples:
            _check_responses(running, example)
            if running.key is not None and not public:
                _check_key(running, example)
        _check_blocking(running, examples)
        _check_together(running, examples)
        slow = list[_Example]()
        for example in examples:
            slow += _check_malformed(running, example)
            _check_other_methods(running, example, examples)
        _check_blocking(running, slow)
        for example in examples:
            abandon(running, example.method, example.path, example.body)
        check_idle(running, idle_seconds)
        for example in examples:
            check_ended(running, str(example), example.method, example.path, example.fields)


@dataclass(frozen=True, slots=True)
class _Example:
    method: str
    path: str
    body: bytes | None
    fields: dict[str, Any] | None
    """The body, if it is a JSON object."""
    change: str = ""
    """The unusual part of the body, as failure messages name it."""

    @classmethod
    def of(cls, request: Request) -> _Example:
        method, path, body = request
        if body is None or isinstance(body, bytes):
            return cls(method, path, body, None)
        return cls(method, path, json.dumps(body).encode(), body if isinstance(body, dict) else None)

    def __str__(self) -> str:
        return f"{self.method} {self.path}{self.change}"


def _send(server: RunningServer, example: _Example, case: str, **options: Any) -> Answer:
    method, body = options.pop("method", example.method), options.pop("body", example.body)
    try:
        return server.send(method, example.path, body, **options)
    except (OSError, http.client.HTTPException) as error:
        raise AssertionError(f"{example} {case}: no whole answer: {type(error).__name__}: {error}") from error


def _check_known(server: RunningServer, name: str) -> None:
    table = server.send("GET", "/plugins").json()
    rows = [row for row in table["components"] if (row["kind"], row["name"]) == ("route", name)]
    assert rows, f"the server does not know a route named {name!r}; install its plugin, or give options with --plugin"
    status, reason = rows[0]["status"], rows[0].get("reason") or "no reason known"
    assert status == "available", f"the server does not serve {name!r}, which is {status}: {reason}"


def _check_responses(server: RunningServer, example: _Example) -> None:
    answers = [_send(server, example, "") for _ in range(ROUNDS)]
    for number, answer in enumerate(answers):
        again = f", the {number + 1}. time" if number else ""
        assert answer.status < 300, f"{example}{again}: status {answer.status}: {answer.body[:300]!r}"
        check_content(str(example), answer)
    assert _shape(answers[0]) == _shape(answers[1]), f"{example}: the second answer has other fields than the first"


def _check_together(server: RunningServer, examples: Sequence[_Example]) -> None:
    """Answers that are the same each time must also be so while others are served."""
    first = [_leaves(_send(server, example, "")) for example in examples]
    time.sleep(1.1)  # so that times in answers differ
    second = [_leaves(_send(server, example, "")) for example in examples]
    alone = [
        {path: value for path, value in before.items() if _agree(value, after.get(path))}
        for before, after in zip(first, second, strict=True)
    ]
    turns = [number for _ in range(AT_ONCE) for number in range(len(examples))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda number: _send(server, examples[number], "with others"), turns))
    for number, answer in zip(turns, answers, strict=True):
        where = f"{examples[number]} together with {AT_ONCE - 1} other requests"
        assert answer.status < 300, f"{where}: status {answer.status}: {answer.body[:300]!r}"
        actual = _leaves(answer)
        for path, value in alone[number].items():
            assert _agree(value, actual.get(path)), f"{where}: {path} is {actual.get(path)!r}, and alone {value!r}"


def _check_malformed(server: RunningServer, example: _Example) -> list[_Example]:
    """Check the answers to malformed and strange bodies; return the requests that took long."""
    slow = list[_Example]()
    if example.body is None:
        return slow
    bodies = dict(MALFORMED)
    bodies["half of the body"] = example.body[: len(example.body) // 2]
    for case, body in bodies.items():
        answer = _send(server, example, f"with {case}", body=body)
        assert answer.status < 500, f"{example} with {case}: status {answer.status}: {answer.body[:300]!r}"
        assert example.fields is None or 400 <= answer.status, (
            f"{example} with {case}: status {answer.status}, and must be refused"
        )
        check_content(f"{example} with {case}", answer)
        if answer.status >= 400:
            check_refusal(f"{example} with {case}", answer)
    for strange in _strange(example):
        answer = _send(server, strange, "")
        assert answer.status < 500, f"{strange}: status {answer.status}: {answer.body[:300]!r}"
        check_content(str(strange), answer)
        if answer.status >= 400:
            check_refusal(str(strange), answer)
        if answer.seconds >= SLOW:
            slow.append(strange)
    return slow


def _strange(example: _Example) -> Iterator[_Example]:
    """Yield the request with each field replaced by each strange value."""
    fields = example.fields or {}
    for field, value in itertools.product(fields, STRANGE_VALUES):
        body = json.dumps({**fields, field: value}).encode()
        yield replace(example, body=body, change=f" with {field}={value!r:.60}")


def _check_other_methods(server: RunningServer, example: _Example, examples: Sequence[_Example]) -> None:
    own = {other.method for other in examples if other.path == example.path}
    for method in METHODS:
        if method not in own:
            answer = _send(server, example, f"as {method}", method=method)
            assert answer.status < 500, f"{method} {example.path}: status {answer.status}: {answer.body[:300]!r}"


def _check_key(server: RunningServer, example: _Example) -> None:
    answer = _send(server, example, "without a key", with_key=False)
    assert answer.status in (401, 403), (
        f"{example} without a key: status {answer.status}; routes that are added to the router itself are guarded, "
        "mounted applications are not"
    )


def _check_blocking(server: RunningServer, examples: Sequence[_Example]) -> None:
    """While a slow request is served, a quick one must be answered long before it."""
    for example in examples:
        if _send(server, example, "").seconds < SLOW:
            continue
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(_send, server, example, "")
            time.sleep(SLOW / 5)
            quick = server.send("GET", "/health")
            slow = sent.result()
        assert quick.seconds < max(SLOW, slow.seconds) / 2, (
            f"{example}: the server answers nobody else for {quick.seconds:.1f} s; work that takes long belongs in a "
            "thread, and waiting into asyncio"
        )


def _leaves(answer: Answer) -> dict[str, Any]:
    """Return the values of a JSON answer by their path; a whole answer of another type under an empty path.

    Of a stream, the texts of all events under a path are one value.
    """
    if answer.content_type == "text/event-stream":
        return _event_texts(line.removeprefix("data:") for line in _lines(answer) if line.startswith("data:"))
    if answer.content_type == "application/x-ndjson":
        return _event_texts(_lines(answer))
    try:
        content = answer.json()
    except ValueError:
        return {"": answer.body}
    return dict(_walk(content, ""))


def _lines(answer: Answer) -> list[str]:
    return answer.body.decode("utf-8", "replace").split("\n")


@dataclass(frozen=True)
class _EventTexts:
    """The texts that the events of a stream have under one path, in their order."""

    texts: tuple[str, ...]

    def agrees(self, other: object) -> bool:
        """Return whether both may be from the same answer: how it is divided into events depends on the load.

        The texts of content are then the same when they are joined, and the names of events when repetitions are
        dropped.
        """
        if not isinstance(other, _EventTexts):
            return False
        return "".join(self.texts) == "".join(other.texts) or self._distinct() == other._distinct()

    def _distinct(self) -> list[str]:
        return [text for text, _ in itertools.groupby(self.texts)]

    def __repr__(self) -> str:
        return repr("".join(self.texts))


def _agree(value: object, other: object) -> bool:
    return value.agrees(other) if isinstance(value, _EventTexts) else value == other


def _event_texts(events: Iterable[str]) -> dict[str, _EventTexts]:
    """Return the texts of JSON events by their path; events that are no JSON under an empty path."""
    texts: dict[str, list[str]] = {}
    for event in events:
        try:
            leaves = dict(_walk(json.loads(event), ""))
        except ValueError:
            leaves = {"": event}
        for path, value in leaves.items():
            if isinstance(value, str):
                texts.setdefault(path, []).append(value)
    return {path: _EventTexts(tuple(values)) for path, values in texts.items()}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")
    else:
        yield path, value


def _shape(answer: Answer) -> object:
    if answer.content_type != "application/json":
        return answer.content_type
    content = answer.json()
    return sorted(content) if isinstance(content, dict) else type(content)
