"""GPT-NeoX and Pythia. Declares only: this module is imported at every start."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl

api_version = 1


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(
        name="GPTNeoXForCausalLM",
        target=f"{__name__}.model:GPTNeoX",
        summary="GPT-NeoX, Pythia",
        example=f"{__name__}.example:tiny",
    )
