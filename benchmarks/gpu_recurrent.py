"""Recurrent layers on the device itself: are the kernels right, and how near to the memory's speed are they?"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.gpu_ceilings import ceilings, median_seconds
from benchmarks.gpu_coded import kernels_of
from sglang_plug import Kernels
from sglang_plug.testing.recurrence import RecurrenceSizes, recurrence_cases, recurrence_error

QWEN_NEXT = RecurrenceSizes(key_heads=16, heads=32, dim=128, value_dim=128)
LARGE = [(QWEN_NEXT, lengths) for lengths in ((1,) * 7, (200, 1, 1, 3), (1000,))]
"""What is checked besides the kit's own cases."""
CROWDS = (1, 8, 32, 128)
"""Sequences of a decode step that is timed."""
PROMPTS = (16, 512, 4096)
"""Tokens of a prompt that is timed."""
DEFINITIONS = Kernels()


@torch.inference_mode()
def recurrent(device: str) -> dict[str, float]:
    """The largest relative error of each kernel and dtype; raises if one is too large."""
    torch.manual_seed(13)
    made, worst = kernels_of(device), dict[str, float]()
    large = (one for sizes, lengths in LARGE for one in recurrence_cases(sizes=[sizes], lengths=[lengths]))
    for case in (*recurrence_cases(), *large):
        name = f"{case.kernel} {case.dtype}"
        worst[name] = max(worst.get(name, 0.0), recurrence_error(made, case, device))
    return worst


@torch.inference_mode()
def recurrent_speed(device: str) -> dict[str, Any]:
    """Seconds of each kernel for steps of one token each, and for a prompt, beside the definition's and beside what
    reading and writing the states takes."""
    bandwidth, made, found = ceilings(device)["copy_bandwidth"], kernels_of(device), dict[str, Any]()
    steps = [*((1,) * crowd for crowd in CROWDS), *((prompt,) for prompt in PROMPTS)]
    for lengths in steps:
        what = f"{len(lengths)} x 1" if lengths[0] == 1 else f"1 x {lengths[0]}"
        for case in recurrence_cases([torch.bfloat16], [QWEN_NEXT], [lengths]):
            if case.by_channel:
                continue
            given = (*case.inputs(device), memory := case.states(device), case.runs(device))
            seconds, plain = (
                median_seconds(partial(getattr(one, case.kernel), *given), device) for one in (made, DEFINITIONS)
            )
            moved = 2 * len(lengths) * memory[0].numel() * memory.element_size()
            found[f"{case.kernel}, {what}"] = {
                "seconds": seconds,
                "times_as_fast": plain / seconds,
                "share_of_limit": moved / bandwidth / seconds,
            }
    return found
