"""Reading of dumped records of experts that are tensors; imports torch, which CSV files do not need."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from sglang_plug import ConfigError

from .columns import COLUMNS


def read_columns(path: Path) -> list[tuple[int, int, int]]:
    """Return ``layer_id``, ``expert_id`` and ``count`` of each expert in a dumped ``.pt``.

    Raises ``ConfigError`` if it is no such file. A file that holds anything but tensors is rejected before its code
    could run.
    """
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the errors of unpickling are not torch's own
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"cannot read {path} as tensors: {type(error).__name__}: {reason}") from error
    tensors = loaded if isinstance(loaded, dict) else {}
    columns = [column for name in COLUMNS if _is_column(column := tensors.get(name))]
    if len(columns) < len(COLUMNS) or len({len(column) for column in columns}) > 1:
        raise ConfigError(f"{path} is not a record of experts: it has no equally long columns {', '.join(COLUMNS)}")
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _is_column(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1
