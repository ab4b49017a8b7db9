"""Random LoRA adapters in PEFT's format, and transformers' models with the adapters merged."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

ROOT = "base_model.model."


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter on disk, and its matrices.

    Args:
        path: its folder.
        targets: adapted modules, by their paths in transformers' model.
        config: ``adapter_config.json``.
    """

    path: Path
    targets: Mapping[str, tuple[Tensor, Tensor]]
    config: Mapping[str, Any]
    scales: Mapping[str, float] = field(default_factory=dict)

    @torch.no_grad()
    def merged(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a copy of ``model`` with ``W + scale * B @ A`` instead of each adapted ``W``."""
        copied = copy.deepcopy(model)
        for name, (down, up) in self.targets.items():
            module: Any = copied.get_submodule(name)
            change = self.scales[name] * (up.double() @ down.double()).float()
            module.weight += change.T if isinstance(module, Conv1D) else change
        return copied


def linears(model: nn.Module, pattern: str) -> list[str]:
    """Return the paths of the linear layers in ``model`` that match ``pattern`` completely."""
    kinds = (nn.Linear, Conv1D)
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and re.fullmatch(pattern, name)]


def make_lora(
    path: Path,
    model: nn.Module,
    targets: Sequence[str],
    *,
    rank: int = 4,
    alpha: float = 8,
    seed: int = 0,
    size: float = 0.15,
    ranks: Mapping[str, int] | None = None,
    alphas: Mapping[str, float] | None = None,
    stabilized: bool = False,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Lora:
    """Write an adapter for the modules ``targets`` of ``model``; ``ranks`` and ``alphas`` are by path."""
    generator = torch.Generator().manual_seed(seed)
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    scales: dict[str, float] = {}
    for name in targets:
        rows, columns = _shape(model.get_submodule(name))
        own = (ranks or {}).get(name, rank)
        down = torch.randn(own, columns, generator=generator) * size
        up = torch.randn(rows, own, generator=generator) * size
        pairs[name] = down.to(dtype), up.to(dtype)
        scales[name] = (alphas or {}).get(name, alpha) / (own**0.5 if stabilized else own)
    stored = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted({name.rpartition(".")[2] for name in targets}),
        "bias": "none",
        "rank_pattern": dict(ranks or {}),
        "alpha_pattern": dict(alphas or {}),
        "use_rslora": stabilized,
        **config,
    }
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(stored))
    tensors = {
        f"{ROOT}{name}.lora_{side}.weight": tensor
        for name, pair in pairs.items()
        for side, tensor in zip("AB", pair, strict=True)
    }
    save_file(tensors, path / "adapter_model.safetensors")
    return Lora(path, pairs, stored, scales)


def _shape(module: Any) -> tuple[int, int]:
    """Return the numbers of rows and columns of a module's matrix."""
    size = module.weight.shape
    return (size[1], size[0]) if isinstance(module, Conv1D) else (size[0], size[1])
