"""What ``quantization_config`` says of a checkpoint in FP8.

Read are weights in e4m3 with a scale for each matrix, each output row, or each block of rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug import ConfigError, Matrix

from .compressed_tensors import only_group
from .selection import Selection, names_in, refuse_unless, targets_in

WHAT = "FP8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Which matrices a checkpoint holds in FP8, and how."""

    selection: Selection
    one_scale: bool = False
    """One scale for a matrix; otherwise one for each of its rows, or for each block."""
    block: tuple[int, int] | None = None
    """Rows and columns that a scale is for."""
    scale_name: str = "weight_scale"
    rounds_activations: bool = True
    """Whether activations are meant to be rounded, too."""

    def holds(self, matrix: Matrix) -> bool:
        """Whether a matrix is in FP8. Raises ``ConfigError`` if some of its parts are and some are not."""
        return self.selection.holds(matrix)


def read(config: Mapping[str, Any]) -> Stored:
    """Understand ``quantization_config``. Raises ``ConfigError`` that names what is not supported."""
    method = config.get("quant_method")
    match method:
        case "compressed-tensors":
            return _compressed_tensors(config)
        case "fbgemm_fp8":
            return Stored(selection=Selection(ignored=names_in(config, "modules_to_not_convert"), head=False))
        case "fp8":
            return _fp8(config)
    raise ConfigError(f"--quantization fp8 does not read a checkpoint whose quant_method is {method!r}")


def _fp8(config: Mapping[str, Any]) -> Stored:
    refuse_unless(
        config.get("activation_scheme", "dynamic") in ("dynamic", "static"), config, "activation_scheme", WHAT
    )
    refuse_unless(config.get("fmt", "e4m3") in ("e4m3", "float8_e4m3fn"), config, "fmt", WHAT)
    ignored = names_in(config, "modules_to_not_convert", "ignored_layers")
    selection, block = Selection(ignored=ignored, head=False), config.get("weight_block_size")
    if block is None:
        return Stored(one_scale=True, selection=selection)
    return Stored(block=_block(config, "weight_block_size"), scale_name="weight_scale_inv", selection=selection)


def _compressed_tensors(config: Mapping[str, Any]) -> Stored:
    refuse_unless(config.get("format") == "float-quantized", config, "format", WHAT)
    group = only_group(config)
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    for part in (weights, activations) if activations else (weights,):
        refuse_unless(part.get("type") == "float", part, "type", WHAT)
        refuse_unless(part.get("num_bits") == 8, part, "num_bits", WHAT)
        refuse_unless(part.get("symmetric", True) is True, part, "symmetric", WHAT)
    strategy = weights.get("strategy")
    refuse_unless(strategy in ("channel", "tensor", "block"), weights, "strategy", WHAT)
    return Stored(
        one_scale=strategy == "tensor",
        block=_block(weights, "block_structure") if strategy == "block" else None,
        rounds_activations=bool(activations),
        selection=Selection(ignored=names_in(config, "ignore"), targets=targets_in(group, WHAT)),
    )


def _block(config: Mapping[str, Any], key: str) -> tuple[int, int]:
    found = config.get(key)
    sizes = found if isinstance(found, list | tuple) else ()
    refuse_unless(len(sizes) == 2 and all(isinstance(one, int) and one > 0 for one in sizes), config, key, WHAT)
    return sizes[0], sizes[1]
