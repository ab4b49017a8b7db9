"""``bench serve`` measures a real server, by each of its APIs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_plug.__main__ import main

from .conftest import Server

SMALL = ["--num-prompts", "3", "--random-input-len", "20", "--random-output-len", "5"]


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "sglang"])
def test_each_api_is_measured(server: Server, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    flags = ["--base-url", server.url, "--backend", backend, "--output-file", str(file), "--goodput", "e2el:600000"]
    assert main(["bench", "serve", *SMALL, *flags, "--num-warmups", "1", "--request-rate", "100"]) == 0
    found = json.loads(file.read_text())
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (3, 0, 15)
    if backend != "openai-chat":
        assert found["total_input_tokens"] == 60
    assert found["request_goodput"] == found["request_throughput"]
    assert 0 < found["mean_ttft_ms"] <= found["mean_e2el_ms"] <= found["duration"] * 1e3
    assert "api_key" not in found
    assert "Request goodput (req/s):" in capsys.readouterr().out


def test_failures_are_counted_and_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", server.url, "--num-prompts", "2", "--random-input-len", "99999", "--max-concurrency", "1"]
    assert main(["bench", "serve", *flags]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split() == ["Failed", "requests:", "2"]
    assert shown[-1].startswith("failed: status 400: ")


def test_conversations_are_sent(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([{"conversations": [{"value": "Hello"}, {"value": "Hi there"}]}]))
    flags = ["--base-url", server.url, "--dataset-name", "sharegpt", "--dataset-path", str(file)]
    assert main(["bench", "serve", *flags, "--num-prompts", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[5].split() == ["Total", "generated", "tokens:", "4"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--base-url", "http://127.0.0.1:9"], "no model is listed at http://127.0.0.1:9/v1/models"),
        (["--goodput", "ttft"], "--goodput 'ttft' is not NAME:MILLISECONDS"),
        (["--metric-percentiles", "0"], "--metric-percentiles '0' is not a list"),
        (["--num-prompts", "0"], "must be at least 1, got 0"),
        (["--request-rate", "0"], "must be greater than 0, got 0"),
    ],
)
def test_mistakes_are_explained(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", *flags]) == 2
    assert message in capsys.readouterr().err


def test_conversations_need_a_file(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", server.url, "--dataset-name", "sharegpt"]) == 2
    assert "needs --dataset-path FILE" in capsys.readouterr().err
