"""Memory of a KV pool on the host: allocated ahead of its use, and returned when the host's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="memory-relief",
        target=f"{__name__}.relief:build",
        summary="cached prefixes of a KV pool in the host's memory are evicted when that memory runs out",
    )
    yield StepExtensionSpec(
        name="page-allocation",
        target=f"{__name__}.page_allocation:build",
        summary="memory of KV slots in the host's memory is allocated before the step that uses them first",
    )
