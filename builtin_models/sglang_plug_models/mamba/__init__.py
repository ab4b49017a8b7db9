"""Mamba, Mamba-2 and Falcon-Mamba: recurrent states only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="MambaForCausalLM", target=f"{__name__}.model:MambaLM", summary="Mamba")
    yield ModelSpec(name="FalconMambaForCausalLM", target=f"{__name__}.model:FalconMamba", summary="Falcon-Mamba")
    yield ModelSpec(name="Mamba2ForCausalLM", target=f"{__name__}.model:Mamba2LM", summary="Mamba-2")
