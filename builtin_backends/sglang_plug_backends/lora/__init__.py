"""LoRA adapters (Hu et al., 2021) in PEFT's format."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import AdapterSpec, hookimpl


@hookimpl
def register_adapters() -> Iterator[AdapterSpec]:
    yield AdapterSpec(
        name="lora",
        target=f"{__name__}.peft:read_lora",
        summary="LoRA and rsLoRA, as PEFT saves them in safetensors",
        needs=("safetensors",),
    )
