"""The reference attention backend, on plain torch: runs on every device, and is what others are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import AttentionSpec, Facts, KernelSpec, hookimpl


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    target = f"{__name__}.attention:TorchAttention"
    yield AttentionSpec(name="torch", target=target, summary="scaled dot-product attention of torch")
    yield AttentionSpec(name="torch_native", target=target, summary="the same, under the name that SGLang gives it")


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(name="torch", target="sglang_plug.kernels:TORCH", summary="the definitions, in plain torch")


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "torch" if kind in ("attention", "kernels") else None
