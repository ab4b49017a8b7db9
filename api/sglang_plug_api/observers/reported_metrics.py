"""Prometheus metrics that are created when they are first reported: counters and gauges of step extensions."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from sglang_plug import MetricCounter, MetricGauge

from .engine_labels import engine_labels


class ExtensionCounters:
    """Counters that are created when their total is first reported.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._values: dict[tuple[str, tuple[str, ...]], float] = {}

    def record(self, counters: Iterable[MetricCounter], model: str, replica: int | None = None) -> None:
        """Raise the counters to ``counters``, which an engine counts from 0 again after a restart.

        Args:
            counters: what the extensions of one engine have counted.
            model: value of the label ``model_name``.
            replica: value of the label ``dp_rank``; ``None``: there is one engine, and no such label.
        """
        own = engine_labels(model, replica)
        for counter in counters:
            labels = {**own, **dict(counter.labels)}
            if counter.name not in self._counters:
                self._counters[counter.name] = Counter(
                    f"sglang:{counter.name}", counter.description, list(labels), registry=self._registry
                )
            key = counter.name, tuple(labels.values())
            before = self._values.get(key, 0.0)
            self._values[key] = counter.value
            increase = counter.value - before if counter.value >= before else counter.value
            self._counters[counter.name].labels(*labels.values()).inc(increase)


class ExtensionGauges:
    """Gauges that are created when they are first reported.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}
        self._label_values: dict[tuple[str, int | None], set[tuple[str, ...]]] = {}
        """Name of a metric and replica -> the values of the labels that it has now."""

    def record(self, gauges: Iterable[MetricGauge], model: str, replica: int | None = None) -> None:
        """Show ``gauges`` instead of earlier ones with their names.

        Args:
            gauges: what was reported of one engine at once.
            model: value of the label ``model_name``.
            replica: value of the label ``dp_rank``; ``None``: there is one engine, and no such label.
        """
        own = engine_labels(model, replica)
        label_values: dict[str, set[tuple[str, ...]]] = {}
        for gauge in gauges:
            labels = {**own, **dict(gauge.labels)}
            if gauge.name not in self._gauges:
                self._gauges[gauge.name] = Gauge(
                    f"sglang:{gauge.name}", gauge.description, list(labels), registry=self._registry
                )
            values = tuple(labels.values())
            self._gauges[gauge.name].labels(*values).set(gauge.value)
            label_values.setdefault(gauge.name, set()).add(values)
        for name, present in label_values.items():
            for values in self._label_values.get((name, replica), set()) - present:
                self._gauges[name].remove(*values)
            self._label_values[name, replica] = present
