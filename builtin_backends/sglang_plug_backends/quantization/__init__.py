"""Matrices in four or eight bits: converted at load time, or quantized in the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import Facts, QuantizationSpec, hookimpl

READERS = {
    "awq": "awq",
    "compressed-tensors": "compressed-tensors",
    "fbgemm_fp8": "fp8",
    "fp8": "fp8",
    "gptq": "gptq",
    "mxfp4": "mxfp4",
}
"""Quantization reader by the checkpoint's ``quant_method``."""
HOST_AND_CUDA = frozenset({"cpu", "cuda"})


@hookimpl
def register_quantizations() -> Iterator[QuantizationSpec]:
    yield QuantizationSpec(
        name="int8",
        target=f"{__name__}.int8:build",
        settings=f"{__name__}.settings:Int8Settings",
        devices=frozenset({"cpu"}),
        summary="quantizes weights to int8 at load time: faster for few requests, less exact",
    )
    yield QuantizationSpec(
        name="fp8",
        target=f"{__name__}.fp8:build",
        settings=f"{__name__}.settings:Fp8Settings",
        devices=HOST_AND_CUDA,
        summary="e4m3 weights and activations; reads checkpoints of compressed-tensors, fbgemm_fp8 and fp8",
    )
    yield QuantizationSpec(
        name="gptq",
        target=f"{__name__}.gptq:build",
        devices=HOST_AND_CUDA,
        summary="reads checkpoints of GPTQ in two, four or eight bits",
    )
    yield QuantizationSpec(
        name="awq",
        target=f"{__name__}.awq:build",
        devices=HOST_AND_CUDA,
        summary="reads checkpoints of AWQ in four bits",
    )
    yield QuantizationSpec(
        name="compressed-tensors",
        target=f"{__name__}.compressed_tensors:build",
        devices=HOST_AND_CUDA,
        summary="reads checkpoints of compressed-tensors in int4 and int8",
    )
    yield QuantizationSpec(
        name="mxfp4",
        target=f"{__name__}.mxfp4:build",
        devices=HOST_AND_CUDA,
        summary="dequantizes MXFP4 experts of checkpoints at load time",
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    if kind != "quantization":
        return None
    stored = getattr(facts.model, "quantization_config", None)
    method, format = (
        stored.get(key) if isinstance(stored, dict) else getattr(stored, key, None)
        for key in ("quant_method", "format")
    )
    if method == "compressed-tensors" and format == "float-quantized":
        return "fp8"
    return READERS.get(method or "")
