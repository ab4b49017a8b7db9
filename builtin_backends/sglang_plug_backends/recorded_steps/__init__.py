"""Steps on CPUs are recorded once and replayed for any number of tokens, with the kernels of the plugin avx512."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="recorded-steps",
        target=f"{__name__}.executor:build",
        summary="steps of up to 509 tokens on CPUs are recorded once and replayed, with the kernels avx512",
    )
