"""Comparison of block sizes for experts with the table in the Triton plugin."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.kernels.ceilings import median_seconds

SECONDS = 180.0
"""Seconds after which no further sizes are tried: each is compiled first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's experts."""

    experts: int
    chosen: int
    """Number of experts per token."""
    hidden: int
    width: int


LAYERS: Mapping[str, Layer] = {
    "Qwen3-30B-A3B": Layer(experts=128, chosen=8, hidden=2048, width=768),
    "Mixtral-8x7B": Layer(experts=8, chosen=2, hidden=4096, width=14_336),
}
TOKENS = (1, 16, 128, 1024, 8192)
OTHERS = (
    {"rows": 16, "columns": 128, "depth": 128, "warps": 4, "stages": 3},
    {"rows": 16, "columns": 64, "depth": 64, "warps": 4, "stages": 5},
    {"rows": 32, "columns": 128, "depth": 64, "warps": 4, "stages": 4},
    {"rows": 64, "columns": 256, "depth": 64, "warps": 8, "stages": 3},
    {"rows": 128, "columns": 256, "depth": 64, "warps": 8, "stages": 3},
)
"""Sizes compared with those of the table."""


@torch.inference_mode()
def moe(device: str) -> dict[str, Any]:
    """Return for each layer and number of tokens the seconds with the table's sizes and with the fastest."""
    from sglang_plug_backends.triton.kernel_set import moe_tiled  # only where Triton is
    from sglang_plug_backends.triton.moe import TILES, Tiles, tiles_for

    torch.manual_seed(5)
    candidates = list(dict.fromkeys([*(tiles for _, tiles in TILES), *(Tiles(**item) for item in OTHERS)]))
    deadline = time.monotonic() + SECONDS
    results: dict[str, Any] = {}
    for name, layer in LAYERS.items():
        gate_up = torch.randn(layer.experts, 2 * layer.width, layer.hidden, device=device, dtype=torch.bfloat16)
        down = torch.randn(layer.experts, layer.hidden, layer.width, device=device, dtype=torch.bfloat16)
        for tokens in TOKENS:
            x = torch.randn(tokens, layer.hidden, device=device, dtype=torch.bfloat16)
            experts = torch.rand(tokens, layer.experts, device=device).topk(layer.chosen).indices
            weights = torch.rand(tokens, layer.chosen, device=device)

            chosen = tiles_for(tokens * layer.chosen, layer.experts, torch.bfloat16)
            run = partial(moe_tiled, x, gate_up, down, experts, weights)
            results[f"{name}, {tokens} tokens"] = compare(chosen, candidates, partial(_seconds, device, run), deadline)
    return results


def compare(
    chosen: Any, candidates: list[Any], seconds: Callable[[Any], float], deadline: float = float("inf")
) -> dict[str, Any]:
    """Time ``candidates``, the ``chosen`` one first; those that a device cannot run are named."""
    times, failed = {chosen: seconds(chosen)}, list[str]()
    for candidate in candidates:
        if candidate in times or time.monotonic() > deadline:
            continue
        try:
            times[candidate] = seconds(candidate)
        except Exception as error:  # for example too much shared memory; its type depends on the version
            failed.append(f"{_text(candidate)}: {type(error).__name__}")
    best = min(times, key=lambda item: times[item])
    return {
        "chosen": asdict(chosen),
        "chosen_seconds": times[chosen],
        "best": asdict(best),
        "best_seconds": times[best],
        "tried": len(times),
        "failed": failed,
    }


def _seconds(device: str, run: Callable[[Any], Any], tiles: Any) -> float:
    return median_seconds(lambda: run(tiles), device)


def _text(tiles: Any) -> str:
    return "x".join(str(size) for size in asdict(tiles).values())
