"""Tests of ``bench``, which measures a real server through each API, or a model in its own process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_plug.__main__ import main

from .servers import Server

SMALL = ["--num-prompts", "3", "--random-input-len", "20", "--random-output-len", "5"]


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "sglang"])
def test_each_api_is_measured(server: Server, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    flags = ["--base-url", server.url, "--backend", backend, "--output-file", str(file), "--goodput", "e2el:600000"]
    assert main(["bench", "serve", *SMALL, *flags, "--num-warmups", "1", "--request-rate", "100"]) == 0
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (3, 0, 15)
    if backend != "openai-chat":
        assert result["total_input_tokens"] == 60
    assert result["request_goodput"] == result["request_throughput"]
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"] <= result["duration"] * 1e3
    assert "api_key" not in result
    assert "Request goodput (req/s):" in capsys.readouterr().out


def test_failures_are_counted_and_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", server.url, "--num-prompts", "2", "--random-input-len", "99999", "--max-concurrency", "1"]
    assert main(["bench", "serve", *flags]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["Failed", "requests:", "2"]
    assert lines[-1].startswith("failed: status 400: ")


def test_conversations_are_sent(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([{"conversations": [{"value": "Hello"}, {"value": "Hi there"}]}]))
    flags = ["--base-url", server.url, "--dataset-name", "sharegpt", "--dataset-path", str(file)]
    assert main(["bench", "serve", *flags, "--num-prompts", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[5].split() == ["Total", "generated", "tokens:", "4"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no model is listed at http://127.0.0.1:9/v1/models"),
        (["--goodput", "ttft"], "--goodput 'ttft' is not NAME:MILLISECONDS"),
        (["--metric-percentiles", "0"], "--metric-percentiles '0' is not a list"),
        (["--num-prompts", "0"], "must be at least 1, got 0"),
        (["--request-rate", "0"], "must be greater than 0, got 0"),
        (["--percentile-metrics", "ttft,speed"], "--percentile-metrics has no 'speed'; known: ttft"),
        (["--header", "x-a"], "--header 'x-a' is not KEY=VALUE"),
        (["--html", "/nowhere/report.html"], "there is no folder to write this file into"),
        (["--tokenizer", "/nowhere"], "no model is listed"),
    ],
)
def test_mistakes_are_explained(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *flags]) == 2
    assert message in capsys.readouterr().err


def test_conversations_need_a_file(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", server.url, "--dataset-name", "sharegpt"]) == 2
    assert "needs --dataset-path FILE" in capsys.readouterr().err


def test_requests_are_sent_at_the_rate(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    flags = [
        "--base-url",
        server.url,
        *SMALL,
        "--request-rate",
        "4",
        "--burstiness",
        "1000",
        "--output-file",
        str(file),
    ]
    assert main(["bench", "serve", *flags, "--save-detailed"]) == 0
    measured = json.loads(file.read_text())
    assert measured["duration"] > 0.4 and measured["request_rate"] == "4.0"
    assert measured["output_lens"] == [5, 5, 5] and all(time > 0 for time in measured["ttfts"])


def test_the_flags_of_vllm_have_their_effect(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags of vLLM set path, headers, sampling parameters, printed metrics, and the result file."""
    sizes = ["--num-prompts", "2", "--input-len", "20", "--output-len", "5", "--top-p", "0.5", "--top-k", "3"]
    traffic = ["--backend", "vllm", "--endpoint", "/v1/completions", "--header", "x-test=1", "--max-concurrency", "1"]
    report_flags = ["--percentile-metrics", "ttft", "--metric-percentiles", "50,90", "--metadata", "commit=abc"]
    files = ["--save-result", "--result-dir", str(tmp_path / "results"), "--html", str(tmp_path / "report.html")]
    assert main(["bench", "serve", "--base-url", server.url, *sizes, *traffic, *report_flags, *files]) == 0
    output = capsys.readouterr().out
    assert "P90 TTFT (ms):" in output and "TPOT" not in output
    (file,) = (tmp_path / "results").iterdir()
    assert file.name.startswith("vllm-infqps-concurrency1-")
    measured = json.loads(file.read_text())
    assert (measured["completed"], measured["total_output_tokens"], measured["commit"]) == (2, 10, "abc")
    assert measured["sampling"] == {"temperature": 0.0, "top_p": 0.5, "top_k": 3}
    assert (tmp_path / "report.html").read_text().count("<svg ") == 6


def test_a_wrong_path_is_a_failure(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", server.url, *SMALL, "--endpoint", "/v1/nothing"]) == 1
    assert "failed: status 404" in capsys.readouterr().out


def test_a_tokenizer_counts_recorded_answers(server: Server, tmp_path: Path) -> None:
    answer = "the the the the the the the the"
    chats, figures = tmp_path / "chats.json", tmp_path / "figures.json"
    chats.write_text(json.dumps([{"conversations": [{"value": "Hello"}, {"value": answer}]}]))
    folder = server.get("/server_info").json()["checkpoint_path"]
    data = ["--dataset-name", "sharegpt", "--dataset-path", str(chats), "--num-prompts", "1", "--tokenizer", folder]
    assert main(["bench", "serve", "--base-url", server.url, *data, "--output-file", str(figures)]) == 0
    expected = len(server.post("/tokenize", json={"prompt": answer}).json()["tokens"])
    assert abs(json.loads(figures.read_text())["total_output_tokens"] - expected) <= 1


def sweep(server: Server, tmp_path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    file = tmp_path / "sweep.json"
    status = main(["bench", "sweep", "--base-url", server.url, *SMALL, "--output-file", str(file), *flags])
    return status, json.loads(file.read_text())


def test_a_sweep_measures_each_load(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "sweep.html"
    status, result = sweep(server, tmp_path, "--request-rate", "50", "100", "inf", "--html", str(report))
    assert (status, result["swept"], [row["request_rate"] for row in result["rows"]]) == (
        0,
        "request_rate",
        [50, 100, "inf"],
    )
    assert [row["completed"] for row in result["rows"]] == [3, 3, 3]
    header, *rows = capsys.readouterr().out.splitlines()
    assert "TTFT p99" in header and [row.split()[:3] for row in rows] == [
        ["50", "3", "0"],
        ["100", "3", "0"],
        ["inf", "3", "0"],
    ]
    assert report.read_text().count("<svg ") == 7


def test_a_sweep_stops_beyond_the_limits(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    concurrency = ["--max-concurrency", "1", "2", "3"]
    status, result = sweep(server, tmp_path, *concurrency, "--goodput", "e2el:0.001")
    assert (status, [row["max_concurrency"] for row in result["rows"]]) == (0, [1])
    assert "stopped: 0% of the requests are within the limits" in capsys.readouterr().out
    assert len(sweep(server, tmp_path, *concurrency, "--goodput", "e2el:0.001", "--stop-below", "0")[1]["rows"]) == 3
    assert len(sweep(server, tmp_path, *concurrency, "--goodput", "e2el:600000")[1]["rows"]) == 3


def test_a_sweep_varies_one_quantity(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--request-rate", "1", "2", "--max-concurrency", "1", "2"]
    assert main(["bench", "sweep", "--base-url", server.url, *flags]) == 2
    assert "several values to --request-rate or to --max-concurrency" in capsys.readouterr().err


BATCH = ["--num-iters", "2", "--num-iters-warmup", "1", "--input-len", "8", "--output-len", "4", "--batch-size"]
MODEL = ["--max-total-tokens", "8192"]


@pytest.mark.parametrize("runs_in", ["server", "process"])
def test_the_latency_of_a_batch(
    runs_in: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, report = tmp_path / "latency.json", tmp_path / "latency.html"
    where = ["--url", server.url] if runs_in == "server" else MODEL
    assert main(["bench", "latency", *BATCH, "2", "--output-json", str(file), "--html", str(report), *where]) == 0
    measured = json.loads(file.read_text())
    assert len(measured["latencies"]) == 2 and measured["batch_size"] == 2
    assert min(measured["latencies"]) <= measured["avg_latency"] <= max(measured["latencies"])
    assert re.search(r"^Avg latency: \d+\.\d+ seconds$", capsys.readouterr().out, re.MULTILINE)
    assert report.read_text().count("<svg ") == 1


def test_several_batch_sizes_are_rows(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    assert main(["bench", "latency", *BATCH, "1", "3", "--output-json", str(file), "--url", server.url]) == 0
    assert [row["batch_size"] for row in json.loads(file.read_text())["rows"]] == [1, 3]


@pytest.mark.parametrize("runs_in", ["server", "process"])
def test_the_throughput_of_many_requests(runs_in: str, server: Server, tmp_path: Path) -> None:
    file, report = tmp_path / "throughput.json", tmp_path / "throughput.html"
    where = ["--url", server.url] if runs_in == "server" else MODEL
    sizes = ["--num-prompts", "6", "--input-len", "10", "--output-len", "4", "--max-concurrency", "3"]
    assert main(["bench", "throughput", *sizes, "--output-json", str(file), "--html", str(report), *where]) == 0
    measured = json.loads(file.read_text())
    assert (measured["num_requests"], measured["total_num_tokens"]) == (6, 6 * 14)
    assert measured["tokens_per_second"] == pytest.approx(measured["total_num_tokens"] / measured["elapsed_time"])
    assert "<svg " in report.read_text()


def test_requests_that_the_model_refuses_fail(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--num-prompts", "2", "--input-len", "99999", "--output-len", "4", *MODEL]
    assert main(["bench", "throughput", *flags]) == 1
    output = capsys.readouterr().out
    assert "Failed requests: 2" in output and "failed: " in output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--url", "http://127.0.0.1:9"], "no model is listed at http://127.0.0.1:9/v1/models"),
        (["--url", "http://127.0.0.1:9", "--dtype", "auto"], "--dtype has no effect with --url"),
        (["--model-name", "other"], "belong to --url"),
        (["--deployment", "process"], "--deployment: Engine is one engine in this process"),
    ],
)
@pytest.mark.parametrize("action", ["latency", "throughput"])
def test_options_that_do_not_fit_together(
    action: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", action, *flags]) == 2
    assert message in capsys.readouterr().err
