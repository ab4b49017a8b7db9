"""Recurrent layers on the device: correctness of the kernels, and their share of the memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.kernels.ceilings import copy_bandwidth, median_seconds
from benchmarks.gpu.kernels.quantized import kernels_of
from sglang_plug import Kernels
from sglang_plug.testing.model.recurrence import RecurrenceSizes, recurrence_cases, recurrence_error

QWEN_NEXT = RecurrenceSizes(key_heads=16, heads=32, dim=128, value_dim=128)
LARGE: tuple[tuple[int, ...], ...] = ((1,) * 7, (200, 1, 1, 3), (1000,))
"""Lengths of sequences in layers of this size, checked besides the conformance tests' own cases."""
CROWDS = (1, 8, 32, 128)
"""Sequences of a timed decode step."""
PROMPTS = (16, 512, 4096)
"""Tokens of a timed prompt."""
DEFINITIONS = Kernels()


@torch.inference_mode()
def recurrent(
    device: str, *, large: Sequence[tuple[int, ...]] = LARGE, kernels: Kernels | None = None
) -> dict[str, float]:
    """Return the largest relative error of each kernel and dtype; raises if one is too large.

    ``kernels`` are the default ones of the device unless given.
    """
    torch.manual_seed(13)
    kernels, worst = kernels or kernels_of(device), dict[str, float]()
    for case in (*recurrence_cases(), *recurrence_cases(sizes=[QWEN_NEXT], lengths=large)):
        name = f"{case.kernel} {case.dtype}"
        worst[name] = max(worst.get(name, 0.0), recurrence_error(kernels, case, device))
    return worst


@torch.inference_mode()
def recurrent_speed(
    device: str,
    *,
    sizes: RecurrenceSizes = QWEN_NEXT,
    crowds: Sequence[int] = CROWDS,
    prompts: Sequence[int] = PROMPTS,
) -> dict[str, Any]:
    """Time each kernel for steps of one token each and for a prompt.

    Compared with the definition and with reading and writing the states.
    """
    bandwidth, kernels, result = copy_bandwidth(device), kernels_of(device), dict[str, Any]()
    steps = [*((1,) * crowd for crowd in crowds), *((prompt,) for prompt in prompts)]
    for lengths in steps:
        label = f"{len(lengths)} x 1" if lengths[0] == 1 else f"1 x {lengths[0]}"
        for case in recurrence_cases([torch.bfloat16], [sizes], [lengths]):
            if case.by_channel:
                continue
            inputs = (*case.inputs(device), memory := case.states(device), case.runs(device))
            seconds, plain = (
                median_seconds(partial(getattr(item, case.kernel), *inputs), device) for item in (kernels, DEFINITIONS)
            )
            moved = 2 * len(lengths) * memory[0].numel() * memory.element_size()
            result[f"{case.kernel}, {label}"] = {
                "seconds": seconds,
                "times_as_fast": plain / seconds,
                "share_of_limit": moved / bandwidth / seconds,
            }
    return result
