from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_plug.testing import check_route
from sglang_plug.testing.server.running_server import RunningServer, running_server

KEY = "sesame"
PLUGINS = [Path(__file__).with_name(name) for name in ("faulty_routes.py", "more_faulty_routes.py")]
SHORT = {"max_tokens": 5, "temperature": 0}

pytestmark = pytest.mark.whole_engine


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = [text for plugin in PLUGINS for text in ("--plugin", str(plugin))]
    with running_server(("--device", "cpu", "--drain-timeout", "1", *flags), KEY) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(server: RunningServer) -> Iterator[None]:
    """Abort the requests that a faulty route left running, which would make the server slow for the next test."""
    yield
    assert server.send("POST", "/abort_request", b'{"abort_all": true}').status == 200


BUILT_IN = {
    "generate": [("POST", "/generate", {"text": "a b", "sampling_params": {"max_new_tokens": 5, "temperature": 0}})],
    "completions": [
        ("POST", "/v1/completions", {"prompt": "a b", **SHORT}),
        ("POST", "/v1/completions", {"prompt": "a c", "stream": True, **SHORT}),
    ],
    "chat": [("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], **SHORT})],
    "health": [("GET", "/health", None), ("GET", "/ping", None)],
    "tokenize": [("POST", "/tokenize", {"prompt": "a"}), ("POST", "/detokenize", {"tokens": [65, 66]})],
    "models": [("GET", "/v1/models", None)],
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_routes_pass(name: str, server: RunningServer) -> None:
    check_route(name, BUILT_IN[name], server=server.url, key=KEY, public=name == "health")


def test_a_correct_route_passes(server: RunningServer) -> None:
    requests = [("POST", "/correct", {"text": "one"}), ("POST", "/correct", {"text": "two"})]
    check_route("correct", requests, server=server.url, key=KEY)


BUGS = [
    ("parses-blindly", "with an empty body: status 500"),
    ("reads-blindly", "with a JSON array: status 500"),
    ("blocks-on-long-texts", "with text='xxx.*the server answers nobody else for"),
    ("blocks", "the server answers nobody else for"),
    ("shares-a-global", "together with 7 other requests: text is"),
    ("no-json", "the answer is no JSON"),
    ("unfinished-events", "the last event has no end"),
    ("events-without-data", "is no event|an event without data"),
    ("only-once", "the 2. time: status 409"),
    ("breaks-off", "no whole answer: IncompleteRead"),
    ("takes-anything", "with an empty body: status 200, and must be refused"),
    ("any-method", "PUT /any-method: status 500"),
    ("redirects", "status 307"),
    ("forgets-fields", "the second answer has other fields"),
    ("leaks-work", "sequences are still served"),
    ("other-error-format", "with an empty body: status 422 without an error message"),
    ("text-errors", "with an empty body: status 400 without an error message"),
    ("page-errors", "with an empty body: status 400 without an error message"),
    ("nameless-errors", "with an empty body: status 400 without an error message"),
    ("errors-with-status-200", "with an empty body: status 200, and must be refused"),
    ("not-a-number", "the answer is no JSON: JSON has no NaN"),
    ("echoes-surrogates", "with text=.*: status 500"),
    ("deep-bodies", "with a list nested 20000 deep: status 500"),
    ("blocks-in-a-stream", "the server answers nobody else for"),
    ("quoted-events", "the data of an event is no JSON"),
    ("broken-lines", "is no event"),
    ("counts-calls", "together with 7 other requests: status 429"),
    ("created", "the last event has no end"),
    ("wrong-length", "no whole answer: IncompleteRead"),
    ("shows-the-trace", "the answer has a traceback of the server"),
]


@pytest.mark.planted_bug("route")
@pytest.mark.parametrize(("name", "message"), BUGS)
def test_planted_bugs_are_named(name: str, message: str, server: RunningServer) -> None:
    requests = [("POST", f"/{name}", {"text": "one"}), ("POST", f"/{name}", {"text": "two"})]
    with pytest.raises(AssertionError, match=message):
        check_route(name, requests, server=server.url, key=KEY, idle_seconds=3)


@pytest.mark.planted_bug("route")
@pytest.mark.parametrize("name", ["generates-on", "streams-on"])
def test_outputs_that_nobody_waits_for_are_named(name: str, server: RunningServer) -> None:
    requests = [("POST", f"/{name}", {"text": "one", "max_tokens": 3})]
    pattern = "tokens were generated for 3 clients that left at once|sequences are still served .* clients have left"
    with pytest.raises(AssertionError, match=pattern):  # the second message occurs on a slow machine
        check_route(name, requests, server=server.url, key=KEY)


@pytest.mark.planted_bug("route")
def test_slots_that_are_never_free_again_are_named(server: RunningServer) -> None:
    requests = [("POST", "/keeps-the-lock", {"text": "one"})]
    with pytest.raises(AssertionError, match="no whole answer: TimeoutError"):
        check_route("keeps-the-lock", requests, server=server.url, key=KEY, timeout=5.0)


def test_a_name_that_nobody_declares(server: RunningServer) -> None:
    with pytest.raises(AssertionError, match="does not know a route named 'nobody'"):
        check_route("nobody", [("GET", "/", None)], server=server.url, key=KEY)
    with pytest.raises(AssertionError, match="at least one request"):
        check_route("generate", [], server=server.url, key=KEY)
