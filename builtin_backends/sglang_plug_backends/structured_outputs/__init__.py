"""Structured outputs: a step extension that compiles grammars in another process and masks the logits of a step."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="structured-outputs",
        target=f"{__name__}.build:build",
        summary="structured outputs: enforces the constraints of requests with grammar backends",
        serves=("constraint", "reasoning_prefix"),
    )
