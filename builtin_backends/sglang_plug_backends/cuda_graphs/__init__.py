"""Graphs: decode steps that are captured once and replayed, and prefill steps that are replayed in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="decode-graphs",
        target=f"{__name__}.build:build_decode_graphs",
        summary="decode steps as CUDA graphs, or by the recorder of the attention backend",
        worker_ranks=True,
    )
    yield StepExtensionSpec(
        name="piecewise-graphs",
        target=f"{__name__}.build:build_piecewise_graphs",
        summary="prefill steps of few tokens as CUDA graphs between the attention of two layers",
    )
    yield StepExtensionSpec(
        name="recorded-steps",
        target=f"{__name__}.recorded_steps:build_recorded_steps",
        summary="steps of a few hundred tokens, recorded once by the attention backend and replayed",
    )
