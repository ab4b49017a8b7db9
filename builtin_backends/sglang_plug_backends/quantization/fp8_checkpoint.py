"""What ``quantization_config`` says of a checkpoint in FP8.

Read are weights in e4m3 with a scale for each output row or each matrix, meant for activations that are scaled when
they arrive.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import ConfigError, Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Which matrices a checkpoint holds in FP8, and how."""

    one_scale: bool
    """One scale for a matrix; otherwise one for each of its rows."""
    ignored: Sequence[str] = ()
    """Names of layers or of what contains them, or ``re:`` and a regular expression for their beginning."""
    head: bool = True
    """False if the head is never quantized."""

    def holds(self, matrix: Matrix) -> bool:
        """Whether a matrix is in FP8. Raises ``ConfigError`` if some of its parts are and some are not."""
        if matrix.plain or (matrix.role == "head" and not self.head):
            return False
        kept = {name for name in matrix.checkpoint_names if any(_names(one, name) for one in self.ignored)}
        if kept and len(kept) < len(matrix.checkpoint_names):
            raise ConfigError(
                f"the checkpoint leaves {', '.join(sorted(kept))} out of its quantization, but not all of "
                f"{', '.join(matrix.checkpoint_names)}, which are multiplied together"
            )
        return not kept


def read(config: Mapping[str, Any]) -> Stored:
    """Understand ``quantization_config``. Raises ``ConfigError`` that names what is not supported."""
    method = config.get("quant_method")
    match method:
        case "compressed-tensors":
            return _compressed_tensors(config)
        case "fbgemm_fp8":
            return Stored(one_scale=False, ignored=_ignored(config, "modules_to_not_convert"), head=False)
        case "fp8":
            _refuse_unless(config.get("activation_scheme", "dynamic") == "dynamic", config, "activation_scheme")
            _refuse_unless(config.get("weight_block_size") is None, config, "weight_block_size")
            ignored = (*_ignored(config, "modules_to_not_convert"), *_ignored(config, "ignored_layers"))
            return Stored(one_scale=True, ignored=ignored, head=False)
    raise ConfigError(f"--quantization fp8 does not read a checkpoint whose quant_method is {method!r}")


def _compressed_tensors(config: Mapping[str, Any]) -> Stored:
    _refuse_unless(config.get("format") == "float-quantized", config, "format")
    groups = list((config.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise ConfigError(f"the checkpoint has {len(groups)} config_groups; checkpoints in FP8 with one are supported")
    (group,) = groups
    _refuse_unless(list(group.get("targets", ())) == ["Linear"], group, "targets")
    weights, activations = group.get("weights") or {}, group.get("input_activations") or {}
    for part in (weights, activations):
        _refuse_unless(part.get("type") == "float", part, "type")
        _refuse_unless(part.get("num_bits") == 8, part, "num_bits")
        _refuse_unless(part.get("symmetric", True) is True, part, "symmetric")
    _refuse_unless(weights.get("strategy") in ("channel", "tensor"), weights, "strategy")
    _refuse_unless(activations.get("dynamic") is True, activations, "dynamic")
    return Stored(one_scale=weights["strategy"] == "tensor", ignored=_ignored(config, "ignore"))


def _ignored(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(config.get(key) or ())


def _names(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return name == pattern or name.startswith(f"{pattern}.")


def _refuse_unless(condition: bool, config: Mapping[str, Any], key: str) -> None:
    if not condition:
        raise ConfigError(f"the checkpoint's FP8 weights have {key} {config.get(key)!r}, which is not supported")
