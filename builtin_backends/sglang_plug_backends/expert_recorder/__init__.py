"""Recording of the experts that a served model chooses."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="expert-recorder",
        target=f"{__name__}.extension:build",
        summary="the experts that a mixture of experts chooses are recorded on request",
    )
