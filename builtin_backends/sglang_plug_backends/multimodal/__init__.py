"""Images, and states that a caller computed, in prompts: the step extension that lays out and encodes them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="multimodal",
        target=f"{__name__}.extension:build",
        summary="images in prompts, and prompts given as input embeddings",
        serves=("media",),
        worker_ranks=True,
    )
