"""The metrics of step extensions: collected, and checked, since every process must be able to read them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge
from sglang_plug.system.library_panics import panics_as_errors

from .server_points import ServicePoints

logger = logging.getLogger(__name__)

NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
"""A name of a metric or a label that every monitoring system accepts."""
Metric = TypeVar("Metric", bound=MetricCounter | MetricGauge)


class ExtensionMetrics:
    """Collects the metrics of step extensions; those of a method that fails are left out from then on.

    Args:
        points: the extension points of operation.
        describe: returns an error in one line, with the extension whose code raised it.
    """

    def __init__(self, points: ServicePoints, describe: Callable[[BaseException], str] = repr) -> None:
        self._points = points
        self._describe = describe
        self._counters = list(points.counters)
        self._gauges = list(points.gauges)
        self._labels: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Name of a metric -> the extension that reported it first, and the names of its labels."""

    def counters(self) -> tuple[MetricCounter, ...]:
        """Return the counters of all extensions."""
        return self._collected(self._counters, MetricCounter)

    def gauges(self) -> tuple[MetricGauge, ...]:
        """Return the gauges of all extensions."""
        return self._collected(self._gauges, MetricGauge)

    def _collected(self, methods: list[Callable[[], Iterable[Metric]]], kind: type[Metric]) -> tuple[Metric, ...]:
        collected: list[Metric] = []
        for method in [*methods]:
            try:
                with panics_as_errors():
                    metrics = list(method())
                for metric in metrics:
                    check_metric(metric, kind)
                    self._check_labels(metric, self._points.names.of(method))
                collected += metrics
            except Exception as error:
                methods.remove(method)
                owner, name = self._points.names.of(method), getattr(method, "__name__", "")
                reason = self._describe(error)
                logger.error("%s: the metrics of %s() are left out from now on: %s", owner, name, reason)
        return tuple(collected)

    def _check_labels(self, metric: MetricCounter | MetricGauge, owner: str) -> None:
        """Raise ``TypeError`` if a metric has other labels than when it was first reported."""
        labels = label_names(metric)
        first, expected = self._labels.setdefault(metric.name, (owner, labels))
        if labels != expected:
            raise TypeError(
                f"the metric {metric.name!r} has the labels {list(labels)}, and {first} reported it with "
                f"{list(expected)}"
            )


def label_names(metric: MetricCounter | MetricGauge) -> tuple[str, ...]:
    """Return the names of the labels of a metric, in their order."""
    return tuple(name for name, _ in metric.labels)


def check_metric(metric: Any, kind: type[Any]) -> None:
    """Raise ``TypeError`` if a metric is not of the ``kind``, or has a field of another type."""
    if not isinstance(metric, kind):
        raise TypeError(f"a metric is a {type(metric).__name__}, not a {kind.__name__}")
    texts = [metric.name, metric.description, *(text for label in metric.labels for text in label)]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"the metric {metric.name!r} has {text!r} where text is expected")
    if type(metric.value) not in (int, float):
        raise TypeError(f"the value of the metric {metric.name!r} is a {type(metric.value).__name__}, not a float")
    for name in (metric.name, *label_names(metric)):
        if not NAME.fullmatch(name):
            raise TypeError(f"the name {name!r} must consist of letters, digits and underscores")
