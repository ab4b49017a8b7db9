"""The metrics of step extensions: collected, and checked, since every process must be able to read them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge
from sglang_plug.system.library_panics import panics_as_errors

from .server_points import ServicePoints

logger = logging.getLogger(__name__)

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
                collected += metrics
            except Exception as error:
                methods.remove(method)
                owner, name = self._points.names.of(method), getattr(method, "__name__", "")
                reason = self._describe(error)
                logger.error("%s: the metrics of %s() are left out from now on: %s", owner, name, reason)
        return tuple(collected)


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
