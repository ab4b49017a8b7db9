"""Malformed and hostile requests are refused with a reason, and the server serves on as before."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO: list[Any] = [{"role": "user", "content": "Hi"}]
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 1},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 1},
    GENERATE: {"text": "Hi", "sampling_params": {"max_new_tokens": 1}},
}
KEYS = {"message", "type", "param", "code"}
KINDS = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError", 413: "PayloadTooLargeError"}
ABSENT = object()


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the error of a refused request, and check its shape."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    error = body["error"]
    assert body.keys() == {"error", "object"} | KEYS
    assert error.keys() == KEYS
    assert {key: body[key] for key in KEYS} == {**error, "code": status}
    assert error["code"] is None or isinstance(error["code"], str)
    assert body["object"] == "error"
    assert error["type"] == KINDS.get(status, "BadRequestError")
    assert isinstance(error["message"], str) and 0 < len(error["message"]) < 1000
    assert "Traceback" not in error["message"] and ".py" not in error["message"]
    return error


@pytest.fixture(scope="module", autouse=True)
def sound(server: Any) -> Iterator[None]:
    """Check after all tests that the server still answers, has lost no KV slot and logged no unexpected error."""
    start = len(server.log)
    yield
    server.wait_whole()
    assert server.generate({"text": "The capital of France is", "sampling_params": {"temperature": 0}})["text"]
    fresh = server.log[start:]
    assert "Traceback" not in fresh, fresh[fresh.index("Traceback") - 500 :][:3000]


def send(server: Any, path: str, body: Any) -> httpx.Response:
    """POST a body that may contain values which JSON cannot express, such as NaN."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.post(path, content=raw, headers={"content-type": "application/json"})


def with_field(path: str, name: str, value: Any) -> dict[str, Any]:
    """Return the valid body with one field replaced; a sampling parameter is put where the route expects it."""
    body = json.loads(json.dumps(VALID[path]))
    target = body
    if path == GENERATE and name in NATIVE_SAMPLING:
        target = body["sampling_params"]
    target[name] = value
    return body


NATIVE_SAMPLING = {
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop",
    "stop_token_ids", "logit_bias", "ignore_eos", "skip_special_tokens", "no_stop_trim", "n", "seed", "max_new_tokens",
    "min_new_tokens", "regex", "ebnf", "json_schema", "structural_tag", "stop_regex", "custom_params",
}  # fmt: skip

BAD_SAMPLING: list[tuple[str, Any]] = [
    ("temperature", -0.1), ("temperature", "hot"), ("temperature", True), ("temperature", []), ("temperature", 1e999),
    ("temperature", float("nan")), ("temperature", float("-inf")), ("top_p", 0), ("top_p", 1.01), ("top_p", -1),
    ("top_p", float("nan")), ("top_p", {}), ("top_k", -2), ("top_k", 1.5), ("top_k", "many"), ("top_k", 1 << 70),
    ("min_p", -0.1), ("min_p", 1.1), ("frequency_penalty", 2.1), ("frequency_penalty", -2.1),
    ("presence_penalty", 3), ("presence_penalty", float("inf")), ("repetition_penalty", 0),
    ("repetition_penalty", -1), ("repetition_penalty", 2.5), ("n", 0), ("n", -1), ("n", 1025), ("n", 10**9),
    ("n", 1 << 63), ("n", 10**40), ("n", 1.5), ("n", True), ("n", "2x"), ("seed", 1 << 63), ("seed", -(1 << 63) - 1),
    ("seed", 0.5), ("seed", True), ("stop", [""]), ("stop", ""), ("stop", ["a"] * 33), ("stop", "x" * 1025),
    ("stop", 5), ("stop", [5]), ("stop", [None]), ("stop", {"a": 1}), ("stop_token_ids", [-1]),
    ("stop_token_ids", [4096]), ("stop_token_ids", [1 << 40]), ("stop_token_ids", [1 << 63]),
    ("stop_token_ids", list(range(300))), ("stop_token_ids", 4), ("stop_token_ids", [1.5]),
    ("logit_bias", {"x": 1}), ("logit_bias", {"1.5": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"4096": 1}),
    ("logit_bias", {str(1 << 70): 1}), ("logit_bias", {"1": "x"}), ("logit_bias", {"1": None}),
    ("logit_bias", {"1": float("inf")}), ("logit_bias", [1]), ("logit_bias", {str(token): 1 for token in range(4097)}),
    ("ignore_eos", "maybe"), ("ignore_eos", 7), ("skip_special_tokens", []), ("no_stop_trim", "perhaps"),
    ("regex", "("), ("regex", 5), ("regex", "(" * 30_000 + ")" * 30_000), ("regex", "a\0"), ("regex", "\ud800"),
    ("stop_regex", "("), ("stop_regex", 5), ("stop_regex", ["a", "b*"]), ("stop_regex", "(?=a)b"), ("stop_regex", [5]),
    ("ebnf", "root ::= x"), ("ebnf", "root ::= " + "(" * 30_000 + ")" * 30_000), ("ebnf", ["a"]),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
@pytest.mark.parametrize(("name", "value"), BAD_SAMPLING, ids=lambda value: str(value)[:24])
def test_sampling_parameters(server: Any, path: str, name: str, value: Any) -> None:
    error = refusal(send(server, path, with_field(path, name, value)))
    named = f"{error['param']} {error['message']}"
    assert name in named or "not valid JSON" in named or "Invalid JSON" in named or "vocabulary" in named


BAD_FIELDS: list[tuple[str, str, Any, str]] = [
    (CHAT, "messages", ABSENT, "messages"), (CHAT, "messages", None, "messages"), (CHAT, "messages", "Hi", "messages"),
    (CHAT, "messages", [], "Messages cannot be empty"), (CHAT, "messages", [None], "messages"),
    (CHAT, "messages", [{}], "role"), (CHAT, "messages", [{"role": "user", "content": 5}], "content"),
    (CHAT, "messages", [{"role": "villain", "content": "x"}], "role"),
    (CHAT, "messages", [{"role": ["user"], "content": "x"}], "role"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "text parts only"),
    (CHAT, "messages", [{"role": "user", "content": [{"type": "text"}]}], "a text part whose text is not a string"),
    (CHAT, "messages", [{"role": "user", "content": [{}]}], "parts are of type 'text'"),
    (CHAT, "messages", [{"role": "user", "content": ["x"]}], "content"),
    (CHAT, "messages", HELLO * 16385, "messages"), (CHAT, "max_tokens", -1, "max_tokens"),
    (CHAT, "max_tokens", 4096, "maximum context length of 4096"), (CHAT, "max_tokens", 1 << 40, "context length"),
    (CHAT, "max_completion_tokens", 5000, "maximum context length"), (CHAT, "max_tokens", "x", "max_tokens"),
    (CHAT, "min_tokens", 2, "min_tokens must"), (CHAT, "min_tokens", -1, "min_"), (CHAT, "stream", "x", "stream"),
    (CHAT, "stream_options", {"include_usage": True}, "stream_options"), (CHAT, "stream_options", 1, "stream_options"),
    (CHAT, "top_logprobs", 2, "logprobs"), (CHAT, "logprobs", 3, "logprobs"), (CHAT, "model", 7, "model"),
    (CHAT, "model", "m" * 257, "model"), (CHAT, "rid", "r" * 257, "rid"), (CHAT, "priority", 1 << 63, "priority"),
    (CHAT, "tools", [{"type": "function"}], "tools"), (CHAT, "tool_choice", "required", "tool choice"),
    (CHAT, "response_format", {"type": "json_schema"}, "response_format"),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {}}, "schema_ is required for json_schema"),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"schema": 5}}, "response_format"),
    (CHAT, "response_format", {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "'not' at #"),
    (CHAT, "response_format", {"type": "structural_tag"}, "structural_tag"),
    (CHAT, "response_format", {"type": "banana"}, "response_format"), (CHAT, "response_format", 3, "response_format"),
    (CHAT, "response_format", {"type": ["text"]}, "response_format"),
    (CHAT, "guided_json", {"type": "object"}, "guided_json"), (CHAT, "guided_regex", "a", "guided_regex"),
    (CHAT, "guided_choice", ["a"], "guided_choice"), (CHAT, "structured_outputs", {"a": {}}, "structured_outputs"),
    (CHAT, "chat_template", "{{ x }}", "chat_template"), (CHAT, "use_beam_search", True, "use_beam_search"),
    (CHAT, "custom_logit_processor", "code", "custom_logit_processor"),
    (CHAT, "chat_template_kwargs", {"messages": []}, "chat_template_kwargs"),
    (CHAT, "chat_template_kwargs", 5, "chat_template_kwargs"),
    (COMPLETIONS, "prompt", ABSENT, "prompt"), (COMPLETIONS, "prompt", None, "prompt"),
    (COMPLETIONS, "prompt", "", "Prompt cannot be empty"), (COMPLETIONS, "prompt", [], "Prompt cannot be empty"),
    (COMPLETIONS, "prompt", [""], "Prompt cannot be empty"), (COMPLETIONS, "prompt", [[]], "Prompt cannot be empty"),
    (COMPLETIONS, "prompt", [[1], []], "Prompt cannot be empty"), (COMPLETIONS, "prompt", {"a": 1}, "prompt"),
    (COMPLETIONS, "prompt", [1, "a"], "prompt"), (COMPLETIONS, "prompt", [[1], "a"], "prompt"),
    (COMPLETIONS, "prompt", [-1], "prompt"), (COMPLETIONS, "prompt", [4096], "vocabulary"),
    (COMPLETIONS, "prompt", [1 << 63], "prompt"), (COMPLETIONS, "prompt", [1.5], "prompt"),
    (COMPLETIONS, "prompt", [True], "prompt"), (COMPLETIONS, "prompt", [5] * 4096, "longer than the model's context"),
    (COMPLETIONS, "prompt", "word " * 8000, "longer than the model's context"),
    (COMPLETIONS, "prompt", ["a"] * 1025, "sequences"), (COMPLETIONS, "max_tokens", 4096, "maximum context length"),
    (COMPLETIONS, "logprobs", 21, "logprobs"), (COMPLETIONS, "logprobs", True, "logprobs"),
    (COMPLETIONS, "echo", "loud", "echo"), (COMPLETIONS, "best_of", 10**9, "best_of"),
    (COMPLETIONS, "prompt_logprobs", 21, "prompt_logprobs"),
    (GENERATE, "text", ABSENT, "Either text, input_ids"), (GENERATE, "text", "", "text cannot be empty"),
    (GENERATE, "text", [], "text cannot be empty"), (GENERATE, "text", ["a", ""], "text cannot be empty"),
    (GENERATE, "text", 5, "text"), (GENERATE, "input_ids", [1], "Either text, input_ids"),
    (GENERATE, "sampling_params", "hot", "sampling_params"), (GENERATE, "sampling_params", [], "sampling_params"),
    (GENERATE, "sampling_params", [{}, {}], "sampling_params"), (GENERATE, "max_new_tokens", -1, "max_new_tokens"),
    (GENERATE, "max_new_tokens", 4096, "maximum context length"), (GENERATE, "min_new_tokens", 2, "min_new_tokens"),
    (GENERATE, "min_new_tokens", 1 << 62, "min_new_tokens"), (GENERATE, "json_schema", "{", "json_schema"),
    (GENERATE, "structural_tag", "-1", "structural_tag"), (GENERATE, "stop_regex", "(", "stop_regex"),
    (GENERATE, "custom_params", {"a": 1}, "custom_params"), (GENERATE, "rid", ["a", "b"], "rid"),
    (GENERATE, "rid", 5, "rid"), (GENERATE, "stream", None, "stream"), (GENERATE, "image_data", "x", "image_data"),
    (GENERATE, "input_embeds", [[0.1]], "input_embeds"), (GENERATE, "return_hidden_states", True, "hidden"),
    (GENERATE, "guided_json", {}, "guided_json"), (GENERATE, "lora_path", "x", "lora_path"),
    (GENERATE, "return_logprob", "maybe", "return_logprob"), (GENERATE, "return_logprob", [True, False], "entries"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name", "value", "message"),
    BAD_FIELDS,
    ids=lambda value: "absent" if value is ABSENT else str(value).replace("/", " ")[:24],
)
@pytest.mark.parametrize("stream", [False, True])
def test_fields(server: Any, path: str, name: str, value: Any, message: str, stream: bool) -> None:
    body = with_field(path, name, value)
    if value is ABSENT:
        del body[name]
    if stream and name not in ("stream", "stream_options"):
        body["stream"] = True
    error = refusal(send(server, path, body))
    assert message in f"{error['param']} {error['message']}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logprob_start_len": 99}, "logprob_start_len"),
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"top_logprobs_num": 1025}, "top_logprobs_num"),
        ({"token_ids_logprob": [4096]}, "vocabulary"),
        ({"token_ids_logprob": [-1]}, "token_ids_logprob"),
        ({"token_ids_logprob": [[1], [2]]}, "token_ids_logprob"),
        ({"token_ids_logprob": "x"}, "token_ids_logprob"),
    ],
)
def test_logprob_options(server: Any, options: dict[str, Any], message: str) -> None:
    error = refusal(send(server, GENERATE, {**VALID[GENERATE], "return_logprob": True, **options}))
    assert message in f"{error['param']} {error['message']}"


def test_ids_for_generate(server: Any) -> None:
    for ids in ([], [[]], [[1], []], [-1], [4096], [[1], [4096]], [1 << 63], ["a"], "1,2", [1, [2]], {"0": 1}, [None]):
        refusal(send(server, GENERATE, {"input_ids": ids, "sampling_params": {"max_new_tokens": 1}}))
    error = refusal(send(server, GENERATE, {"input_ids": [7] * 5000}))
    assert error["message"] == "The input (5000 tokens) is longer than the model's context length (4096 tokens)."


def test_one_bad_prompt_fails_the_batch_and_frees_the_others(server: Any) -> None:
    params = {"max_new_tokens": 1000, "ignore_eos": True}
    for stream in (False, True):
        body = {"input_ids": [[5], [6], [5000]], "sampling_params": params, "stream": stream}
        answer = send(server, GENERATE, body)
        assert "vocabulary" in answer.text
        server.wait_whole()


NOT_JSON = [
    b"", b"   ", b"{", b"}", b"nul", b"[1, 2", b'{"a": }', b"{'a': 1}", b"\xff\xfe", b'{"text": "\xff"}', b"\x00",
    b'{"text": "a\x00b"}', b'{"text": "a\nb"}', b'{"text": NaN}', b'{"temperature": Infinity}', b"[" * 200_000,
    b'{"a":' * 100_000, b"5", b'"text"', b"null", b"true", b"[]", b'[{"text": "x"}]', b'{"text": "a"} trailing',
    b"\xef\xbb\xbf\xef\xbb\xbf{}", b"text=hello&stream=true", b"9" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
@pytest.mark.parametrize("raw", NOT_JSON, ids=lambda raw: str(raw[:16]))
def test_bodies_that_are_no_json_object(server: Any, path: str, raw: bytes) -> None:
    refusal(send(server, path, raw))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
def test_deep_nesting_where_anything_is_allowed(server: Any, path: str) -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    answer = send(server, path, {**VALID[path], "metadata": deep})
    assert answer.status_code in (200, 400)
    raw = b'{"metadata":' + b"[" * 5000 + b"]" * 5000 + b"}"
    refusal(send(server, path, raw))


STRANGE = [
    "\ud800",
    "a\udfff",
    "\x00",
    "a\x00b",
    "\x1b[31m",
    "\r\nX-Evil: 1",
    "\u2028",
    "\ufeff",
    "𝕏" * 50,
    "‮",
    "%s{0}",
]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_strange_text_anywhere(server: Any, text: str) -> None:
    for name in ("model", "rid", "user", "cache_salt", "stop"):
        for path in (CHAT, COMPLETIONS):
            answer = send(server, path, {**VALID[path], name: text})
            assert answer.status_code in (200, 400), (name, answer.text)
            assert "x-evil" not in answer.headers
    bodies: list[tuple[str, Any]] = [
        (CHAT, {"messages": [{"role": "user", "content": text, "name": text}], "max_tokens": 1}),
        (CHAT, {"messages": HELLO, "max_tokens": 1, "chat_template_kwargs": {text: text}}),
        (COMPLETIONS, {"prompt": text, "max_tokens": 1, "echo": True}),
        (COMPLETIONS, {"prompt": [text, text], "max_tokens": 1, "stream": True, "echo": True}),
        (GENERATE, {"text": text, "rid": text, "sampling_params": {"max_new_tokens": 1, "stop": [text]}}),
        (GENERATE, {"text": text, text: text, "sampling_params": {"max_new_tokens": 1, text: text}}),
    ]
    for path, body in bodies:
        assert send(server, path, body).status_code in (200, 400), body


@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/chat", "/v1/chat/completions/", "/generate/x", "//generate", "/%00"]
)
def test_unknown_routes(server: Any, path: str) -> None:
    error = refusal(httpx.get(f"{server.url}{path}"), 404)
    assert "there is no route" in error["message"]


def test_wrong_methods(server: Any) -> None:
    for method, path in (("GET", GENERATE), ("DELETE", CHAT), ("POST", "/health"), ("PATCH", "/v1/models")):
        answer = server.client.request(method, path)
        refusal(answer, 405)
        assert answer.headers["allow"]


def test_unknown_models(server: Any) -> None:
    for name in ("x", "a/b/c", "../../etc/passwd", "x" * 5000, "%F0%9F%8E%89"):
        error = refusal(server.get(f"/v1/models/{name}"), 404)
        assert "does not exist" in error["message"] or "no route" in error["message"]


def test_bodies_over_the_limit(server: Any) -> None:
    limit = 32 << 20
    with httpx.Client(base_url=server.url, timeout=240) as client:
        error = refusal(client.post(GENERATE, content=b" " * (limit + 1)), 413)
    assert str(limit) in error["message"] and "--max-request-bytes" in error["message"]

    def chunks() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * (1 << 20)

    with httpx.Client(base_url=server.url, timeout=240) as client:
        refusal(client.post(GENERATE, content=chunks(), headers={"content-type": "application/json"}), 413)


def test_a_large_body_below_the_limit_is_read(server: Any) -> None:
    body = {**VALID[GENERATE], "padding": "x" * (5 << 20)}
    assert send(server, GENERATE, body).status_code == 200


def raw_exchange(server: Any, data: bytes) -> bytes:
    """Send bytes to the server, and return all bytes of its answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=240) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        response = b""
        while piece := connection.recv(65536):
            response += piece
    return response


def test_bytes_that_are_no_http(server: Any) -> None:
    assert raw_exchange(server, b"\x16\x03\x01\x02\x00\x01\x00").startswith((b"HTTP/1.1 400", b""))
    assert raw_exchange(server, b"GET / HTTP/1.1\r\nbad header\r\n\r\n").startswith(b"HTTP/1.1 400")
    length = b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-length: %s\r\n\r\n"
    for declared in (b"-1", b"1e3", b"99999999999999999999"):
        assert raw_exchange(server, length % declared)[9:12] in (b"400", b"413"), declared
    assert raw_exchange(server, length % b"100" + b'{"text":')[9:12] in (b"400", b"")  # cut off


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text(max_size=20)
    | st.sampled_from([0, 1, -1, 4095, 4096, "", "auto", "none", 1 << 31, 1 << 63, -(1 << 63), 1e308, 5e-324]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = {
    CHAT: [
        "messages", "model", "stream", "stream_options", "n", "temperature", "top_p", "top_k", "min_p", "max_tokens",
        "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "logit_bias", "seed", "rid", "request_id",
        "priority", "cache_salt", "extra_key", "user", "regex", "response_format", "logprobs", "top_logprobs", "tools",
        "tool_choice", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "ignore_eos",
        "frequency_penalty", "presence_penalty", "repetition_penalty", "skip_special_tokens", "no_stop_trim",
    ],
    COMPLETIONS: ["prompt", "echo", "logprobs", "best_of", "suffix", "n", "stop", "logit_bias", "stream", "max_tokens"],
    GENERATE: [
        "text", "input_ids", "sampling_params", "rid", "stream", "incremental", "return_logprob", "logprob_start_len",
        "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "priority", "cache_salt", "extra_key",
        "temperature", "n", "stop", "stop_token_ids", "logit_bias", "seed", "min_new_tokens", "image_data",
    ],
}  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a valid body with one to three fields replaced by random values."""
    path = draw(st.sampled_from([CHAT, COMPLETIONS, GENERATE]))
    body = json.loads(json.dumps(VALID[path]))
    for name in draw(st.lists(st.sampled_from(FIELDS[path]), min_size=1, max_size=3, unique=True)):
        inside = path == GENERATE and name in NATIVE_SAMPLING and isinstance(body["sampling_params"], dict)
        (body["sampling_params"] if inside else body)[name] = draw(JSON_VALUES)
    return path, body


def check_any_answer(answer: httpx.Response) -> None:
    """Check that a request was served, or refused with a reason."""
    if answer.status_code == 200:
        assert answer.json() if answer.headers["content-type"] == "application/json" else "[DONE]" in answer.text
    else:
        refusal(answer)


FUZZ = settings(max_examples=125, deadline=None, derandomize=True, database=None)


@settings(FUZZ, suppress_health_check=list(HealthCheck))
@given(call=mutated())
def test_anything_in_any_field(server: Any, call: tuple[str, dict[str, Any]]) -> None:
    check_any_answer(send(server, *call))


@settings(FUZZ, max_examples=50, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from([CHAT, COMPLETIONS, GENERATE]), body=JSON_VALUES)
def test_anything_as_a_body(server: Any, path: str, body: Any) -> None:
    refusal(send(server, path, body))


@settings(FUZZ, max_examples=50, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from([CHAT, COMPLETIONS, GENERATE]), body=st.binary(max_size=200))
def test_any_bytes_as_a_body(server: Any, path: str, body: bytes) -> None:
    refusal(send(server, path, body))
