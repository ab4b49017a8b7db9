"""GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="GPT2LMHeadModel",
        target=f"{__name__}.model:GPT2",
        summary="GPT-2 and compatible checkpoints",
        parallel=True,
    )
