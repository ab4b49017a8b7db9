"""Tests of the HTTP protocol: curl commands as users type them, and the bytes of server-sent events."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BODY = json.dumps({"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0})


def curl(url: str, *options: str) -> bytes:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    return subprocess.run([program, "-s", "-S", *options, url], capture_output=True, check=True, timeout=240).stdout


def status(url: str, *options: str) -> tuple[int, bytes]:
    body, _, code = curl(url, "-w", "\n%{http_code}", *options).rpartition(b"\n")
    return int(code), body


def test_without_a_content_type(server: Any) -> None:
    answer = json.loads(curl(f"{server.url}/v1/chat/completions", "-d", BODY))
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/json", "a/b+json", ""])
def test_content_types_of_json(server: Any, kind: str) -> None:
    code, _ = status(f"{server.url}/v1/chat/completions", "-H", f"Content-Type: {kind}", "-d", BODY)
    assert code == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: http://evil.example"],
        ["Sec-Fetch-Site: cross-site"],
        ["Content-Type: text/plain"],
        ["Content-Type: multipart/form-data; boundary=x"],
    ],
)
def test_what_a_browser_could_be_made_to_send_is_refused(server: Any, headers: list[str]) -> None:
    code, body = status(
        f"{server.url}/v1/chat/completions", "-d", BODY, *(word for header in headers for word in ("-H", header))
    )
    says_origin = "Content-Type" not in headers[0]
    assert code == (403 if says_origin else 415)
    assert json.loads(body)["error"]["type"] == ("PermissionDeniedError" if says_origin else "BadRequestError")


def test_chat_stream_byte_for_byte(server: Any) -> None:
    body = json.dumps({**json.loads(BODY), "stream": True})
    raw = curl(f"{server.url}/v1/chat/completions", "-N", "-d", body)
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")
    assert re.fullmatch(rb"(data: [^\n]+\n\n)+", raw)
    events = [json.loads(line[6:]) for line in raw.decode().split("\n\n")[:-2]]
    head = {key: events[0][key] for key in ("id", "object", "created", "model")}
    assert all(list(event) == ["id", "object", "created", "model", "choices"] for event in events)
    assert all({key: event[key] for key in head} == head for event in events)
    blank = {"logprobs": None, "finish_reason": None, "matched_stop": None}
    first = {"role": "assistant", "content": "", "reasoning_content": None}
    ending = {"delta": {"reasoning_content": None}, **blank, "finish_reason": "stop", "matched_stop": 4}
    assert events[0]["choices"] == [{"index": 0, "delta": first, **blank}]
    assert events[-1]["choices"] == [{"index": 0, **ending}]


def test_headers_of_a_stream(server: Any) -> None:
    head, _, _ = curl(f"{server.url}/generate", "-i", "-d", '{"text": "Hi", "stream": true}').partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    assert lines[0] == "http/1.1 200 ok"
    assert "cache-control: no-cache" in lines and "transfer-encoding: chunked" in lines
    assert any(line.startswith("content-type: text/event-stream") for line in lines)
    assert not any(line.startswith(("content-length", "server:")) for line in lines)


def test_text_is_not_escaped_and_never_cut_inside_a_character(server: Any) -> None:
    text = "São Tomé – 日本 🎉"
    body = json.dumps({"text": f"{text}", "sampling_params": {"max_new_tokens": 1}, "return_logprob": True})
    assert json.loads(curl(f"{server.url}/generate", "-d", body))["meta_info"]["prompt_tokens"] > 5
    echo = {"prompt": text, "echo": True, "max_tokens": 1, "stream": True, "temperature": 0}
    raw = curl(f"{server.url}/v1/completions", "-N", "-d", json.dumps(echo))
    assert text.encode() in raw


def test_generate_with_put(server: Any) -> None:
    code, body = status(f"{server.url}/generate", "-X", "PUT", "-d", '{"text": "Hi"}')
    assert (code, "text" in json.loads(body)) == (200, True)


def test_an_upload_with_and_without_the_at_sign(server: Any, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"custom_id": "a"}\n')
    url, purpose = f"{server.url}/v1/files", ("-F", "purpose=batch")
    code, answer = status(url, *purpose, "-F", "file=data.jsonl")
    assert code == 400 and json.loads(answer)["error"]["param"] == "file"
    code, answer = status(url, *purpose, "-F", f"file=@{tmp_path}/data.jsonl")
    assert code == 200 and json.loads(answer)["bytes"] == 19
