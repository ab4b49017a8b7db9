"""A checkpoint whose keys and values e4m3 holds only with the scales that come with it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

KEYS, VALUES = 600.0, 3000.0
"""By how much keys and values become larger."""
UNITS = 8.0
"""How many units of the pool what was 1 before becomes."""
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
