"""Memory relief: cached prefixes are evicted, and their memory is returned, when the host's memory runs out."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="memory-relief",
        target=f"{__name__}.extension:build",
        summary="cached prefixes of a KV pool in the host's memory are evicted when that memory runs out",
    )
