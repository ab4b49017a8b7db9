"""The step extension of images and input embeddings in prompts, which lays them out and encodes images."""

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
