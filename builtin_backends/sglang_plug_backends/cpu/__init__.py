"""Kernels for CPUs: matrices kept in oneDNN's blocked layout."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, KernelSpec, hookimpl


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name="cpu",
        target=f"{__name__}.kernels:build",
        devices=frozenset({"cpu"}),
        summary="prepacked oneDNN matrices in bfloat16",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "cpu" if kind == "kernels" and facts.device == "cpu" else None
