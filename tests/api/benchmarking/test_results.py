"""Tests of the files that a benchmark writes: reports, plots and JSON."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.benchmarking.figures import METRICS, RequestResult, figures
from sglang_plug_api.benchmarking.html_report import write_report
from sglang_plug_api.benchmarking.load import Load
from sglang_plug_api.benchmarking.offline import latency_figures, latency_text
from sglang_plug_api.benchmarking.plots import iteration_plots, request_plots, sweep_plots
from sglang_plug_api.benchmarking.results import check_outputs, write_results

LOAD = Load(base_url="http://server", api="openai", model="folder/model", api_key="secret", max_concurrency=4)


def results(count: int) -> list[RequestResult]:
    return [
        RequestResult(
            sent=float(index),
            arrivals=[index + 0.5, index + 1.0],
            finished=index + 1.0,
            prompt_tokens=4,
            output_tokens=3,
        )
        for index in range(count)
    ]


def options(**values: Any) -> argparse.Namespace:
    defaults = {"output_file": None, "html": None, "metadata": [], "save_result": False, "result_dir": None}
    return argparse.Namespace(**{**defaults, "result_filename": None, "label": None, "backend": "openai", **values})


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_report_is_one_file_that_needs_no_other(count: int, tmp_path: Path) -> None:
    plots = request_plots(results(count))
    assert [plot.title for plot in plots][-2:] == ["Requests in flight", "Output token throughput"]
    assert len(plots) == len(METRICS) + 2
    file = tmp_path / "report.html"
    write_report(file, "<model>", {"model_id": "<script>", "unset": None}, "a < b", plots)
    page = file.read_text()
    assert "&lt;model&gt;" in page and "a &lt; b" in page and "&lt;script&gt;" in page and "unset" not in page
    assert set(re.findall(r"https?://[^\"'< ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|\bsrc=|\bhref=|url\(", page)
    assert len(re.findall("<svg ", page)) == len(plots) and len(page) < 200_000
    for plot in plots:
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")


def test_without_answers_there_is_nothing_to_plot() -> None:
    assert request_plots([RequestResult(sent=0.0, finished=0.1, error="no")]) == []


def test_a_sweep_is_plotted_over_what_was_varied() -> None:
    rows = [
        {"request_rate": rate, **figures(results(3), 3.0, [99], {"ttft": 1.0})} for rate in (1.0, 2.0, float("inf"))
    ]
    plots = sweep_plots(rows, "request_rate", "sent", [99])
    assert [plot.title for plot in plots[:2]] == ["Throughput", "Token throughput"]
    assert plots[0].svg.count("<circle") == 2 * 2  # throughput and goodput; an infinite rate is not on the axis
    assert plots[-1].svg.count("<circle") == 3
    assert sweep_plots([{**rows[0], "p99_e2el_ms": None}], "request_rate", "sent", [99])


def test_the_latency_of_a_batch_is_split_into_prefill_and_decode() -> None:
    shape = {"batch_size": 4, "input_len": 10, "output_len": 11}
    row = {**shape, **latency_figures(shape, [3.0, 2.0, 1.0], [0.5, 1.0, 1.5])}
    assert (row["avg_latency"], row["percentiles"]["50"], row["median_prefill_latency"]) == (2.0, 2.0, 1.0)
    assert (row["prefill_throughput"], row["median_decode_latency"], row["decode_throughput"]) == (40.0, 0.1, 40.0)
    assert row["overall_throughput"] == 42.0
    assert "Decode: 0.100000 seconds/step, 40.00 token/s" in latency_text(row)
    assert iteration_plots([row])[0].svg.count("<circle") == 3
    single = latency_figures({**shape, "output_len": 1}, [1.0], [1.0])
    assert single["decode_throughput"] is None and "Decode" not in latency_text({**shape, **single})


def test_results_are_saved_under_the_name_that_vllm_gives_them(tmp_path: Path) -> None:
    write_results(options(save_result=True, result_dir=tmp_path / "new"), LOAD, {"duration": 1.0})
    (file,) = (tmp_path / "new").iterdir()
    assert re.fullmatch(r"openai-infqps-concurrency4-model-\d{8}-\d{6}\.json", file.name)
    assert json.loads(file.read_text()) == {"duration": 1.0}
    write_results(options(save_result=True, result_dir=tmp_path, result_filename="mine.json"), LOAD, {})
    assert (tmp_path / "mine.json").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output_file": Path("/nowhere/figures.json")}, "--output-file /nowhere/figures.json: there is no folder"),
        ({"html": Path("/nowhere/report.html")}, "--html /nowhere/report.html: there is no folder"),
        ({"html": Path("/")}, "--html /: .* or it is a folder"),
        ({"metadata": ["version"]}, "--metadata 'version' is not KEY=VALUE"),
    ],
)
def test_files_that_cannot_be_written_are_named_before_the_benchmark(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_outputs(options(**values))
