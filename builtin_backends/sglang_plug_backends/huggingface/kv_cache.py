"""FP8 settings of keys and values in checkpoints: in the configuration and in tensor names."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Literal

from sglang_plug import KVScaleTensor

logger = logging.getLogger(__name__)

FP8 = "fp8_e4m3"
COMPRESSED_TENSORS, MODELOPT = "compressed-tensors", "modelopt"
PATTERNS = (
    # compressed-tensors (self_attn.k_scale), ModelOpt (self_attn.k_proj.k_scale), fused projections
    re.compile(r"(?P<layer>.+?)(?:\.(?:q|k|v|qkv)_proj)?\.(?P<part>q|k|v|kv)_scale"),
    # compressed-tensors, before scales were the attention's own
    re.compile(r"(?P<layer>.+)\.(?P<part>[qkv])_proj\.output_scale"),
)
PARTS: dict[str, tuple[Literal["k", "v"], ...]] = {"k": ("k",), "v": ("v",), "kv": ("k", "v"), "q": ()}
"""Scale names; ``kv`` is the older name of one scale for both."""


def kv_scale(name: str) -> KVScaleTensor | None:
    """Return which of keys and values the tensor ``name`` scales, judging by its name; ``None`` if neither."""
    for pattern in PATTERNS:
        if result := pattern.fullmatch(name):
            return KVScaleTensor(layer=result["layer"], parts=PARTS[result["part"]])
    return None


def read_kv_dtype(quantization: Mapping[str, Any], exported: Mapping[str, Any]) -> str | None:
    """Read the dtype of keys and values from ``quantization_config`` or ModelOpt's ``hf_quant_config.json``.

    Returns ``None`` if neither sets one or it is not supported; the latter is logged.
    """
    inner = exported.get("quantization")
    algorithm = quantization.get("kv_cache_quant_algo") or (
        inner.get("kv_cache_quant_algo") if isinstance(inner, Mapping) else None
    )
    scheme = quantization.get("kv_cache_scheme")
    if quantization.get("quant_method") not in (COMPRESSED_TENSORS, MODELOPT):
        scheme = None  # others set an unused value here
    if not algorithm and not scheme:
        return None
    if (not algorithm or str(algorithm).upper() == "FP8") and (not scheme or _supported(scheme)):
        return FP8
    logger.warning(
        "The checkpoint specifies a KV cache format that is not supported (%s); FP8 with one scale per layer is. The "
        "KV cache keeps the model's dtype, which is more exact, unless --kv-cache-dtype names another",
        f"kv_cache_scheme {scheme!r}" if scheme else f"kv_cache_quant_algo {algorithm!r}",
    )
    return None


def keeps_weights_alone(quantization: Mapping[str, Any]) -> bool:
    """Return True if ``quantization_config`` concerns keys and values only, so that the weights are ordinary."""
    method, groups = quantization.get("quant_method"), quantization.get("config_groups") or {}
    kv_scheme = quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
    if method not in (COMPRESSED_TENSORS, MODELOPT) or not kv_scheme or quantization.get("quant_algo"):
        return False
    return isinstance(groups, Mapping) and not any(map(_of_weights, groups.values()))


def _of_weights(group: Any) -> bool:
    """Return whether a group of ``config_groups`` changes matrices, and not only inputs of attention."""
    if not isinstance(group, Mapping):
        return True
    return bool(group.get("weights")) or (
        "Linear" in (group.get("targets") or ()) and bool(group.get("input_activations"))
    )


def _supported(scheme: Any) -> bool:
    """Return True for one static scale per layer and e4m3 values."""
    return (
        isinstance(scheme, Mapping)
        and scheme.get("num_bits") == 8
        and scheme.get("type") == "float"
        and scheme.get("symmetric", True) is True
        and not scheme.get("dynamic", False)
        and scheme.get("strategy") in (None, "tensor")
    )
