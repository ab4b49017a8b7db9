"""Memory of a KV pool on the host: allocated ahead of its use, and returned when the host's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="memory-relief",
        target=f"{__name__}.relief:build",
        summary="evicts cached prefixes when the host's memory runs out, if it holds the KV pool",
    )
    yield StepExtensionSpec(
        name="page-allocation",
        target=f"{__name__}.page_allocation:build",
        summary="allocates the host memory of KV slots shortly before they are used first",
    )
