"""Metrics of step extensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy
import pytest

from sglang_plug import MetricCounter, MetricGauge, MetricsPhase, StepExtension
from sglang_plug.engine.extensions.metrics import ExtensionMetrics
from sglang_plug.engine.extensions.points import extension_points

GOOD = MetricCounter("good_total", "Good", (("label", "a"),), 2.0)


class Reports(StepExtension, MetricsPhase):
    def __init__(self, counters: Iterable[Any] = (), gauges: Iterable[Any] = ()) -> None:
        self.returned, self.returned_gauges, self.calls = counters, gauges, 0

    def counters(self) -> Iterable[MetricCounter]:
        self.calls += 1
        return self.returned

    def gauges(self) -> Iterable[MetricGauge]:
        return self.returned_gauges


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (MetricCounter("a_total", "A", (("label", 3),), 1.0), "the metric 'a_total' has 3 where text is expected"),  # type: ignore[arg-type]
        (MetricCounter("a_total", "A", (), numpy.float64(1)), "the value of the metric 'a_total' is a float64"),
        (MetricCounter("a_total", "A", (), "1"), "the value of the metric 'a_total' is a str"),  # type: ignore[arg-type]
        (MetricGauge("a_info", "A", ()), "a metric is a MetricGauge, not a MetricCounter"),
        (None, "a metric is a NoneType"),
        (MetricCounter("a-b_total", "A", (), 1.0), "the name 'a-b_total' must consist of letters, digits and"),
        (
            MetricCounter("good_total", "Good", (("l b", "a"),), 1.0),
            "the name 'l b' must consist of letters, digits and",
        ),
        (
            MetricCounter("good_total", "Good", (("other", "a"),), 1.0),
            r"the metric 'good_total' has the labels ['other'], and step-extension 'faulty' reported it with ['label']",
        ),
    ],
)
def test_metrics_that_cannot_be_sent_are_left_out_with_a_log_line(
    bad: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    faulty, other = Reports([GOOD, bad]), Reports([GOOD], [MetricGauge("b_info", "B", (("x", "y"),))])
    metrics = ExtensionMetrics(extension_points({"faulty": faulty, "other": other}).service, describe=str)
    for _ in range(3):
        assert metrics.counters() == (GOOD,)
        assert [fact.name for fact in metrics.gauges()] == ["b_info"]
    assert faulty.calls == 1 and other.calls == 3
    assert f"'faulty': the metrics of counters() are left out from now on: {message}" in caplog.text


def test_two_extensions_may_not_report_a_metric_with_different_labels(caplog: pytest.LogCaptureFixture) -> None:
    second = Reports([MetricCounter("good_total", "Good", (), 2.0)])
    metrics = ExtensionMetrics(extension_points({"first": Reports([GOOD]), "second": second}).service, describe=str)
    assert metrics.counters() == metrics.counters() == (GOOD,) and second.calls == 1
    assert "'second': the metrics of counters() are left out" in caplog.text
    assert "step-extension 'first' reported it with ['label']" in caplog.text


def test_a_method_that_fails_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    metrics = ExtensionMetrics(extension_points({"faulty": Reports(1), "other": Reports([GOOD])}).service)  # type: ignore[arg-type]
    assert metrics.counters() == metrics.counters() == (GOOD,)
    assert caplog.text.count("are left out from now on") == 1
