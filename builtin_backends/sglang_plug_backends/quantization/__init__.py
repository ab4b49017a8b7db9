"""Matrices in eight bits: whole numbers on CPUs, floating-point numbers where the device multiplies them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, QuantizationSpec, hookimpl

FP8_METHODS = frozenset({"compressed-tensors", "fbgemm_fp8", "fp8"})


@hookimpl
def register_quantizations() -> Iterator[QuantizationSpec]:
    yield QuantizationSpec(
        name="int8",
        target=f"{__name__}.int8:build",
        settings=f"{__name__}.settings:Int8Settings",
        devices=frozenset({"cpu"}),
        summary="weights rounded to eight bits when loaded: faster for few requests, less exact",
    )
    yield QuantizationSpec(
        name="fp8",
        target=f"{__name__}.fp8:build",
        settings=f"{__name__}.settings:Fp8Settings",
        devices=frozenset({"cpu", "cuda"}),
        summary="e4m3 weights and activations; reads checkpoints of compressed-tensors, fbgemm_fp8 and fp8",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    if kind != "quantization":
        return None
    stored = getattr(facts.model, "quantization_config", None)
    method = stored.get("quant_method") if isinstance(stored, dict) else getattr(stored, "quant_method", None)
    return "fp8" if method in FP8_METHODS else None
