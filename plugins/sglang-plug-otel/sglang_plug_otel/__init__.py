"""OpenTelemetry traces. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_plug import ObserverSpec, hookimpl

api_version = 1


@hookimpl
def register_observers() -> Iterator[ObserverSpec]:
    yield ObserverSpec(
        name="otel",
        target=f"{__name__}.observer:TracingObserver",
        settings=f"{__name__}:Settings",
        enabled=False,
        needs=("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
        summary="OpenTelemetry: a span for each request",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set otel.endpoint=URL``."""

    endpoint: str = ""
    """Collector URL with its path; empty: the ``OTEL_EXPORTER_OTLP_ENDPOINT`` variables."""
    service_name: str = "sglang-plug"
    queue_size: int = 2048
    """Maximum spans that wait for the exporter; more are dropped."""
    stop_timeout: float = 2.0
    """Seconds for sending the last spans when the server stops."""

    def __post_init__(self) -> None:
        if self.queue_size < 1:
            raise ValueError(f"queue_size is {self.queue_size}, but must be at least 1")
        if self.stop_timeout < 0:
            raise ValueError(f"stop_timeout is {self.stop_timeout}, but must not be negative")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint is {self.endpoint!r}, but must look like http://host:4318/v1/traces")
