"""Speculative decoding: a drafter proposes tokens, and a step verifies several of them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="speculation",
        target=f"{__name__}.choice:build",
        summary="speculative decoding: verifies the draft tokens of --speculative-algorithm",
    )
