"""Nemotron-H and Nemotron 3: each layer is Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="NemotronHForCausalLM", target=f"{__name__}.model:NemotronH", summary="Nemotron-H and Nemotron 3"
    )
