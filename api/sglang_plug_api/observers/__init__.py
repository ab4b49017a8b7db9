"""Built-in observers: Prometheus metrics, and log lines for prefill and decode batches."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ObserverSpec, hookimpl


@hookimpl
def register_observers() -> Iterator[ObserverSpec]:
    yield ObserverSpec(
        name="prometheus", target=f"{__name__}.prometheus:PrometheusObserver", summary="metrics for /metrics"
    )
    yield ObserverSpec(name="log", target=f"{__name__}.log:LogObserver", summary="a log line for each batch")
