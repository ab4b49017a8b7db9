"""The time of a step: while sequences decode, prompts are computed in steps that end in time for these."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="step-time",
        target=f"{__name__}.extension:build",
        summary="limits the prompt tokens of steps that also decode, by --target-itl-ms",
    )
