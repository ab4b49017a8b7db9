"""Attention and Mamba mixers in one model: Bamba, Falcon-H1, Jamba and Zamba2."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="BambaForCausalLM", target=f"{__name__}.bamba:Bamba", summary="Bamba")
    yield ModelSpec(name="FalconH1ForCausalLM", target=f"{__name__}.falcon_h1:FalconH1", summary="Falcon-H1")
    yield ModelSpec(name="JambaForCausalLM", target=f"{__name__}.jamba:Jamba", summary="Jamba")
    yield ModelSpec(name="Zamba2ForCausalLM", target=f"{__name__}.zamba2:Zamba2", summary="Zamba2")
