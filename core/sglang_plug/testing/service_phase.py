"""Checks of what a step extension reports to operators: counters, facts and plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge, StepStats
from sglang_plug.engine.extensions.metrics import check_metric, label_names
from sglang_plug.engine.extensions.server_points import ServicePoints

Labels = tuple[tuple[str, str], ...]
STATS = StepStats(
    time=1.7e9,
    seconds=0.01,
    prefill_sequences=1,
    prefill_tokens=7,
    cached_tokens=0,
    decode_sequences=2,
    running=3,
    waiting=1,
    used_slots=30,
    cached_slots=0,
    free_slots=70,
    capacity=100,
    retracted=0,
)


class ServiceReports:
    """The reports of extensions; counters are compared with earlier ones.

    Args:
        points: the extension points of operation.
    """

    def __init__(self, points: ServicePoints) -> None:
        self._points = points
        self._counted: dict[tuple[str, Labels], float] = {}
        self._label_names: dict[str, tuple[str, ...]] = {}

    def check(self) -> None:
        """Raise ``AssertionError`` unless reports are what ``/server_info`` and metrics can show."""
        for step_done in self._points.step_done:
            stats = replace(STATS)
            step_done(stats)
            assert stats == STATS, "step_done() changed the statistics that others get, too"
        self._check_counters(
            [counter for counters in self._points.counters for counter in _checked(counters(), MetricCounter)]
        )
        for gauge in [gauge for gauges in self._points.gauges for gauge in _checked(gauges(), MetricGauge)]:
            self._check_labels("gauges()", gauge)
            assert not gauge.name.endswith("_total"), f"gauges(): the name {gauge.name!r} must not end with _total"
            assert math.isfinite(gauge.value), f"gauges(): {gauge.name} is {gauge.value}, and must be finite"
        info = self._points.all_info()
        try:
            json.dumps(info)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"info() must return plain data for /server_info: {error}, in {info}") from error
        for controls in self._points.controls:
            odd = [call for call, function in controls().items() if not isinstance(call, str) or not callable(function)]
            assert not odd, f"controls() of {self._points.names.of(controls)} must be functions by name: {odd[0]!r}"

    def _check_labels(self, method: str, metric: MetricCounter | MetricGauge) -> None:
        labels = label_names(metric)
        others = self._label_names.setdefault(metric.name, labels)
        assert others == labels, (
            f"{method}: {metric.name} has the labels {list(labels)}, and had {list(others)}; their names and order "
            "are always the same"
        )

    def _check_counters(self, counters: Iterable[MetricCounter]) -> None:
        keys = set[tuple[str, Labels]]()
        for counter in counters:
            self._check_labels("counters()", counter)
            key = counter.name, counter.labels
            assert counter.name.endswith("_total"), f"counters(): the name {counter.name!r} must end with _total"
            assert key not in keys, f"counters() returned {counter.name!r} twice with the labels {counter.labels}"
            before = self._counted.get(key, 0.0)
            assert math.isfinite(counter.value) and counter.value >= before, (
                f"counters(): {counter.name} is {counter.value} after {before}; it counts since the start"
            )
            keys.add(key)
            self._counted[key] = counter.value


def _checked(metrics: Any, kind: type[Any]) -> list[Any]:
    """Return the metrics that a method returned. Raises ``AssertionError`` naming what is wrong with one."""
    method = "counters()" if kind is MetricCounter else "gauges()"
    assert isinstance(metrics, Iterable), f"{method} returned {type(metrics).__name__}, which is not a list of metrics"
    checked = list(metrics)
    for metric in checked:
        try:
            check_metric(metric, kind)
        except TypeError as error:
            raise AssertionError(f"{method}: {error}") from error
    return checked
