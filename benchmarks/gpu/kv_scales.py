"""Checkpoint whose keys and values fit into e4m3 only with its stored scales."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KEYS, VALUES = 600.0, 3000.0
"""Factors by which keys and values grow."""
UNITS = 8.0
"""Number of pool units that represent the former 1."""
FACTORS = {"q_proj": 1 / KEYS, "k_proj": KEYS, "v_proj": VALUES, "o_proj": 1 / VALUES}


def enlarge(folder: Path) -> None:
    """Rewrite the checkpoint in ``folder``: large keys and values, small queries and outputs, the same model.

    Biases grow along, but for those of outputs, which come after.
    """
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in list(tensors):
        module, _, kind = name.rpartition(".")
        attention, _, projection = module.rpartition(".")
        if projection in FACTORS and not (projection == "o_proj" and kind == "bias"):
            tensors[name] *= FACTORS[projection]
        if projection == "k_proj":
            tensors[f"{attention}.k_scale"] = torch.tensor(KEYS / UNITS)
            tensors[f"{attention}.v_scale"] = torch.tensor(VALUES / UNITS)
    save_file(tensors, file)
