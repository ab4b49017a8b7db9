"""Prometheus gauges with facts as labels: of step extensions, and of the engine."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge

from sglang_plug import MetricInfo

from .engine_labels import engine_labels


class InfoGauges:
    """Gauges that are created when their facts are first reported.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}
        self._shown: dict[tuple[str, int | None], set[tuple[str, ...]]] = {}
        """Name of a metric and replica -> the values of the labels that it has now."""

    def record(self, infos: Iterable[MetricInfo], model: str, replica: int | None = None) -> None:
        """Show ``infos`` in place of earlier ones with their names.

        Args:
            infos: what was reported of one engine at once.
            model: value of the label ``model_name``.
            replica: value of the label ``dp_rank``; ``None``: there is one engine, and no such label.
        """
        own = engine_labels(model, replica)
        shown: dict[str, set[tuple[str, ...]]] = {}
        for info in infos:
            labels = {**own, **dict(info.labels)}
            if info.name not in self._gauges:
                self._gauges[info.name] = Gauge(
                    f"sglang:{info.name}", info.description, list(labels), registry=self._registry
                )
            values = tuple(labels.values())
            self._gauges[info.name].labels(*values).set(info.value)
            shown.setdefault(info.name, set()).add(values)
        for name, present in shown.items():
            for values in self._shown.get((name, replica), set()) - present:
                self._gauges[name].remove(*values)
            self._shown[name, replica] = present
