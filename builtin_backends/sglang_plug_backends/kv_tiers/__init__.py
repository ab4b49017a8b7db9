"""KV tiers: prefixes that do not fit the KV pool are kept in the stores of ``--kv-store``, and loaded from there."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import StepExtensionSpec, hookimpl


@hookimpl
def register_step_extensions() -> Iterator[StepExtensionSpec]:
    yield StepExtensionSpec(
        name="kv-tiers",
        target=f"{__name__}.build:build",
        before=("lora",),  # the digest of the weights leaves out adapters
        settings=f"{__name__}.settings:KVTiersSettings",
        summary="keeps computed prefixes in the stores of --kv-store",
    )
