"""Tests that the metrics, options and routes in the pages for operators exist."""

from __future__ import annotations

import argparse
import configparser
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from sglang_plug import Plugins, StepStats
from sglang_plug.plugins.flags import plugin_flags
from sglang_plug_api.observers.prometheus import PrometheusObserver
from sglang_plug_api.options.parsing import add_arguments
from sglang_plug_backends.lora.extension import LORA_INFO
from sglang_plug_backends.memory_relief.relief import MemoryRelief
from sglang_plug_backends.step_time.extension import StepTime
from tests.parser_flags import flags_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("operations", "security", "deployment")
OTHERS = {"--num-prompts", "--request-rate"}
"""Options of ``sglang-plug bench``."""
METRIC = re.compile(r"sglang:\w+")
SAMPLES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


def text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def metrics() -> Iterator[Metric]:
    """Yield the metrics of the Prometheus observer and those of the step extensions that every server has."""
    observer = PrometheusObserver()
    observer.on_start({"served_model_name": "demo", "components": {}, "page_size": 1, "max_total_tokens": 1})
    numbers: dict[str, Any] = dict.fromkeys((field.name for field in fields(StepStats) if field.default is MISSING), 0)
    observer.on_step(StepStats(**numbers, counters=tuple(MemoryRelief().counters()), gauges=tuple(StepTime().gauges())))
    yield from observer.registry.collect()


def name_of(metric: Metric) -> str:
    """Return the name as it is exported: the library leaves out the ending of counters."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def samples() -> set[str]:
    return {metric.name + ending for metric in metrics() for ending in SAMPLES[metric.type]}


def test_the_table_of_metrics_is_the_observer_s() -> None:
    rows = re.findall(r"^\| `(sglang:\w+)` \| (\w+) \| (.*) \|$", text("metrics"), re.MULTILINE)
    assert rows == [(name_of(metric), metric.type, metric.documentation) for metric in metrics()]


def test_metrics_named_elsewhere_exist() -> None:
    known = samples() | {name_of(metric) for metric in metrics()} | {f"sglang:{LORA_INFO}"}
    assert set(METRIC.findall(text("metrics") + text("operations") + text("deployment"))) <= known


def flags() -> set[str]:
    parser = argparse.ArgumentParser(parents=[plugin_flags()], conflict_handler="resolve")
    add_arguments(parser, Plugins.discover())
    return flags_of(parser)


@pytest.mark.parametrize("page", PAGES)
def test_options_exist(page: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text(page)))
    assert len(named) > 10
    assert named <= flags() | OTHERS


@pytest.mark.parametrize("page", PAGES)
def test_routes_exist(page: str) -> None:
    named = set(re.findall(r"`(/[a-z_0-9/]+)`", text(page)))
    offered = text("api")
    assert named
    assert [path for path in sorted(named) if f" {path}`" not in offered] == []


def test_files_to_start_from_can_be_read() -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text("deployment"), re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["ini", "yaml", "nginx", "yaml"]
    unit, deployment, proxy, scraping = (block for _, block in blocks)
    service = configparser.ConfigParser(interpolation=None, strict=True)
    service.optionxform = str  # type: ignore[assignment, method-assign]
    service.read_string(unit)
    assert service["Service"]["ExecStart"].split()[1] == "serve"
    container = yaml.safe_load(deployment)["spec"]["template"]["spec"]["containers"][0]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["path"] for probe in probes] == ["/health", "/health", "/ready"]
    assert proxy.count("{") == proxy.count("}") and yaml.safe_load(scraping)["scrape_configs"]


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))


def expressions(dashboard: Any) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_metric_that_is_graphed_exists_and_the_other_way_round(dashboard: Any) -> None:
    graphed = {name for expression in expressions(dashboard) for name in METRIC.findall(expression)}
    assert graphed <= samples()
    assert {name for metric in metrics() for name in graphed if name.startswith(metric.name)} == graphed
    assert [metric.name for metric in metrics() if not any(name.startswith(metric.name) for name in graphed)] == []


def test_rates_are_of_counters_and_quantiles_of_histograms(dashboard: Any) -> None:
    kinds = {metric.name + ending: metric.type for metric in metrics() for ending in SAMPLES[metric.type]}
    for expression in expressions(dashboard):
        for name in METRIC.findall(expression):
            is_rate = f"rate({name}" in expression
            assert is_rate == (kinds[name] in ("counter", "histogram")), expression
            assert ("histogram_quantile" in expression) == name.endswith("_bucket"), expression


def test_panels_do_not_overlap_and_have_their_own_ids(dashboard: Any) -> None:
    cells = [
        (x, y)
        for position in (panel["gridPos"] for panel in dashboard["panels"])
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (chosen,) = (variable for variable in dashboard["templating"]["list"] if variable["name"] == "model")
    assert set(METRIC.findall(chosen["definition"])) <= samples()
