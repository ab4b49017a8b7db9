"""The ``quantization_config`` of FP8 checkpoints.

Supported are weights in e4m3 with a scale for each matrix, each output row, or each block of rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import ConfigError, Matrix

from .compressed_tensors import only_group
from .selection import Selection, names_in, refuse_unless, targets_in

SCHEME = "FP8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Format:
    """The matrices that a checkpoint stores in FP8, and their format."""

    selection: Selection
    one_scale: bool = False
    """True for one scale per matrix; otherwise one per row or per block."""
    block: tuple[int, int] | None = None
    """Rows and columns of a block with one scale."""
    scale_name: str = "weight_scale"
    rounds_activations: bool = True
    """True if activations are quantized, too."""

    def holds(self, matrix: Matrix) -> bool:
        """Return whether a matrix is in FP8. Raises ``ConfigError`` if only some of its parts are."""
        return self.selection.holds(matrix)


def read(config: Mapping[str, Any]) -> Fp8Format:
    """Parse ``quantization_config``. Raises ``ConfigError`` that names unsupported settings."""
    method = config.get("quant_method")
    match method:
        case "compressed-tensors":
            return _compressed_tensors(config)
        case "fbgemm_fp8":
            return Fp8Format(selection=Selection(ignored=names_in(config, "modules_to_not_convert"), head=False))
        case "fp8":
            return _fp8(config)
    raise ConfigError(f"--quantization fp8 does not read a checkpoint whose quant_method is {method!r}")


def _fp8(config: Mapping[str, Any]) -> Fp8Format:
    refuse_unless(
        config.get("activation_scheme", "dynamic") in ("dynamic", "static"), config, "activation_scheme", SCHEME
    )
    refuse_unless(config.get("fmt", "e4m3") in ("e4m3", "float8_e4m3fn"), config, "fmt", SCHEME)
    ignored = names_in(config, "modules_to_not_convert", "ignored_layers")
    selection, block = Selection(ignored=ignored, head=False), config.get("weight_block_size")
    if block is None:
        return Fp8Format(one_scale=True, selection=selection)
    return Fp8Format(block=_block(config, "weight_block_size"), scale_name="weight_scale_inv", selection=selection)


def _compressed_tensors(config: Mapping[str, Any]) -> Fp8Format:
    refuse_unless(config.get("format") == "float-quantized", config, "format", SCHEME)
    group = only_group(config)
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    for part in (weights, activations) if activations else (weights,):
        refuse_unless(part.get("type") == "float", part, "type", SCHEME)
        refuse_unless(part.get("num_bits") == 8, part, "num_bits", SCHEME)
        refuse_unless(part.get("symmetric", True) is True, part, "symmetric", SCHEME)
    strategy = weights.get("strategy")
    refuse_unless(strategy in ("channel", "tensor", "block"), weights, "strategy", SCHEME)
    return Fp8Format(
        one_scale=strategy == "tensor",
        block=_block(weights, "block_structure") if strategy == "block" else None,
        rounds_activations=bool(activations),
        selection=Selection(ignored=names_in(config, "ignore"), targets=targets_in(group, SCHEME)),
    )


def _block(config: Mapping[str, Any], key: str) -> tuple[int, int]:
    result = config.get(key)
    sizes = result if isinstance(result, list | tuple) else ()
    refuse_unless(len(sizes) == 2 and all(isinstance(size, int) and size > 0 for size in sizes), config, key, SCHEME)
    return sizes[0], sizes[1]
