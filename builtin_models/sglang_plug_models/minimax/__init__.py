"""MiniMax-Text-01: linear attention and experts."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="MiniMaxForCausalLM", target=f"{__name__}.model:MiniMax", summary="MiniMax-Text-01")
