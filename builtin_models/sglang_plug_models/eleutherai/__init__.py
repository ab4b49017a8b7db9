"""GPT-Neo and GPT-J of EleutherAI, and CodeGen, which is GPT-J inside."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ModelSpec, hookimpl


@hookimpl
def register_models() -> Iterator[ModelSpec]:
    yield ModelSpec(name="GPTNeoForCausalLM", target=f"{__name__}.gpt_neo:GPTNeo", summary="GPT-Neo")
    yield ModelSpec(name="GPTJForCausalLM", target=f"{__name__}.gptj:GPTJ", summary="GPT-J")
    yield ModelSpec(name="CodeGenForCausalLM", target=f"{__name__}.gptj:CodeGen", summary="CodeGen")
