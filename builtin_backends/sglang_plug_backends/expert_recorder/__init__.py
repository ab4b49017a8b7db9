"""Recording of the experts that a served model chooses, and the command that plots a record."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import CommandSpec, StepExtensionSpec, hookimpl


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    yield CommandSpec(name="experts", target=f"{__name__}.plot:command", summary="plot recorded expert choices")


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="expert-recorder",
        target=f"{__name__}.extension:build",
        summary="records the experts that tokens choose, on request",
    )
