"""The reference attention backend in plain torch: it runs on every device and defines the expected results."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import AttentionSpec, Facts, KernelSpec, hookimpl

KV_DTYPES = frozenset({"bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2"})


@hookimpl
def register_attention_backends() -> Iterator[AttentionSpec]:
    summaries = {
        "torch": "scaled dot-product attention of torch",
        "torch_native": "the same, under the name that SGLang gives it",
    }
    for name, summary in summaries.items():
        yield AttentionSpec(
            name=name, target=f"{__name__}.attention:TorchAttention", summary=summary, kv_dtypes=KV_DTYPES
        )


@hookimpl
def register_kernels() -> Iterator[KernelSpec]:
    yield KernelSpec(
        name="torch", target="sglang_plug.contracts.model.kernels:TORCH", summary="reference implementation in PyTorch"
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "torch" if kind in ("attention", "kernels") else None
