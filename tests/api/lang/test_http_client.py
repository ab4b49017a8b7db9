"""Tests of the HTTP client, whose errors contain the message of the server."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from sglang_plug_lang import BackendError, RuntimeEndpoint, function, gen, select, user
from sglang_plug_lang.http_client import JsonClient


@pytest.fixture
def client(answering: Any) -> Any:
    client = JsonClient(answering.url + "/", "sésame", None)
    yield client
    client.close()


def test_the_key_and_the_body_arrive(client: Any, answering: Any) -> None:
    answering.answers["/a"] = lambda body: (200, {"got": body})
    assert client.post("/a", {"x": 1}) == {"got": {"x": 1}}
    assert client.get("/a") == {"got": None}
    assert client.status("POST", "/none") == 404
    assert answering.requests[0][2]["Authorization"].encode("latin-1").decode() == "Bearer sésame"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "nested"}}, "nested"),
        ({"message": "flat"}, "flat"),
        ({"error": "text"}, "text"),
        ("plain", "plain"),
        ([1], "1"),
        ("", "Internal Server Error"),
    ],
)
def test_refusals(client: Any, answering: Any, body: Any, message: str) -> None:
    answering.answers["/a"] = (500, body)
    for call in (lambda: client.post("/a"), lambda: list(client.events("/a", {}))):
        with pytest.raises(BackendError, match=message) as caught:
            call()
        assert caught.value.status == 500


def test_what_is_not_json(client: Any, answering: Any) -> None:
    answering.answers["/a"] = (200, "<html>")
    with pytest.raises(BackendError, match="did not answer with JSON: '<html>'"):
        client.get("/a")


def test_events(client: Any, answering: Any) -> None:
    answering.answers["/a"] = (200, ': comment\n\ndata: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n')
    assert list(client.events("/a", {})) == [{"a": 1}, {"a": 2}]


def test_events_with_line_breaks_of_unicode(client: Any, answering: Any) -> None:
    answering.answers["/a"] = (200, 'data: {"a": "1\u2028\x852"}\r\n\r\ndata: {"a": 2}')
    assert list(client.events("/a", {})) == [{"a": "1\u2028\x852"}, {"a": 2}]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ('{"error": {"message": "died", "code": 503}}', 503),
        ('{"error": {"message": "died", "code": "gone"}, "code": 503}', 503),
        ('{"error": {"message": "died", "code": null}}', None),
    ],
)
def test_errors_in_streams(client: Any, answering: Any, error: str, status: int | None) -> None:
    answering.answers["/a"] = (200, f'data: {{"a": 1}}\n\ndata: {error}\n\n')
    events = client.events("/a", {})
    assert next(events) == {"a": 1}
    with pytest.raises(BackendError, match="died") as caught:
        next(events)
    assert caught.value.status == status


def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(BackendError, match=f"no answer from {url}"):
        RuntimeEndpoint(url)
    client = JsonClient(url, None, False)
    for call in (lambda: list(client.events("/a", {})), lambda: client.status("GET", "/a")):
        with pytest.raises(BackendError, match="no answer from"):
            call()


def info(path: str = "Qwen/Qwen2.5-7B-Instruct") -> tuple[int, Any]:
    return 200, {"model_path": path}


def test_an_endpoint_asks_for_the_model_and_takes_its_template(answering: Any) -> None:
    answering.answers["/get_model_info"] = info()
    assert RuntimeEndpoint(answering.url).chat_template.name == "qwen"
    named = RuntimeEndpoint(answering.url, chat_template_name="vicuna")
    assert (named.chat_template.name, named.get_model_name()) == ("vicuna", "Qwen/Qwen2.5-7B-Instruct")
    with pytest.raises(ValueError, match="unknown chat template"):
        RuntimeEndpoint(answering.url, chat_template_name="none")


def test_what_an_endpoint_sends(answering: Any) -> None:
    answering.answers["/get_model_info"] = info("lmsys/vicuna-7b")
    answering.answers["/generate"] = lambda body: (200, [{"text": "a", "meta_info": {"id": "1"}}] * 2)
    endpoint = RuntimeEndpoint(answering.url)

    @function
    def program(s: Any) -> None:
        s += gen("out", max_tokens=3, n=2, stop="x", return_logprob=True)
        s += user("q" + gen("in", stop=["y"]))

    state = program(backend=endpoint, temperature=0)
    assert (state["out"], state.get_meta_info("in")) == (["a", "a"], {"id": "1"})
    (_, first, _), (_, second, _) = answering.requests[1:]
    assert first == {
        "text": "",
        "sampling_params": {"max_new_tokens": 3, "n": 2, "stop": ["x"], "temperature": 0} | {"stop": "x"},
        "return_logprob": True,
    }
    assert second == {
        "text": "aUSER: q",
        "sampling_params": {"stop": ["y", "</s>", "USER:"], "temperature": 0},
    }


def test_select_in_two_requests(answering: Any) -> None:
    answering.answers["/get_model_info"] = info()

    def generate(body: Any) -> tuple[int, Any]:
        if isinstance(body["text"], str):
            return 200, {"text": "", "meta_info": {"prompt_tokens": 7}}
        rows = [[[-0.5, 1, "I "], [-3.0, 2, "no"]], [[-0.5, 1, "I "], [-0.1, 3, "yes"]]]
        return 200, [{"text": "", "meta_info": {"prompt_tokens": 8, "input_token_logprobs": row}} for row in rows]

    answering.answers["/generate"] = generate

    @function
    def program(s: Any) -> None:
        s += "I say: I " + select("x", ["no", "yes"])

    state = program(backend=RuntimeEndpoint(answering.url))
    assert (state["x"], state.text()) == ("yes", "I say: I yes")
    first, second = (body for path, body, _ in answering.requests if path == "/generate")
    assert first == {"text": "I say: I ", "sampling_params": {"max_new_tokens": 0, "temperature": 0.0}}
    assert second == {
        "text": ["I say: I no", "I say: I yes"],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 5,
        "return_text_in_logprobs": True,
    }


def test_tokens_are_counted_and_prefixes_cached(answering: Any) -> None:
    answering.answers["/get_model_info"] = info()
    meta_info = {"prompt_tokens": 5, "completion_tokens": 2}
    answering.answers["/generate"] = lambda body: (200, {"text": "a", "meta_info": meta_info})
    endpoint = RuntimeEndpoint(answering.url)
    function(lambda s: s.__iadd__("b" + gen("x"))).run(backend=endpoint).sync()
    endpoint.cache_prefix("prefix")
    assert repr(endpoint.token_usage) == "TokenUsage(prompt_tokens=10, completion_tokens=4)"
    assert answering.requests[-1][1] == {
        "text": "prefix",
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
    }
    endpoint.token_usage.reset()
    assert endpoint.token_usage.prompt_tokens == 0
    assert endpoint.get_chat_template() is endpoint.chat_template


def test_profiling(answering: Any) -> None:
    answering.answers["/get_model_info"] = info()
    answering.answers["/start_profile"] = (200, {})
    endpoint = RuntimeEndpoint(answering.url)
    endpoint.start_profile()
    with pytest.raises(BackendError, match="stop_profile"):
        endpoint.stop_profile()
