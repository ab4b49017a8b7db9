"""Recurrent states: the step extension that gives sequences their states and keeps some for the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="recurrent-state",
        target=f"{__name__}.extension:build",
        summary="recurrent states of layers such as Mamba and linear attention",
    )
