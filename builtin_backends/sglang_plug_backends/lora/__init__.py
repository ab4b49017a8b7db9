"""LoRA adapters (Hu et al., 2021): the step extension that serves adapters, and PEFT's format of them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import AdapterSpec, StepExtensionSpec, hookimpl


@hookimpl
def register_adapters() -> Iterator[AdapterSpec]:
    yield AdapterSpec(
        name="lora",
        target=f"{__name__}.peft:read_lora",
        summary="LoRA and rsLoRA, as PEFT saves them in safetensors",
        needs=("safetensors",),
    )


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="lora",
        target=f"{__name__}.build:build",
        summary="LoRA and other adapters, chosen per request",
        serves=("adapter",),
        worker_ranks=True,
    )
