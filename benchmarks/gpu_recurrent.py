"""Recurrent layers on the device itself: are the kernels right, and how near to the memory's speed are they?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_ceilings import ceilings, median_seconds
from benchmarks.gpu_coded import kernels_of
from benchmarks.gpu_kernels import BOUNDS, relative_error
from sglang_plug import Kernels, Runs, scanning

LENGTHS: Sequence[Sequence[int]] = ([1], [1] * 7, [5, 1, 30], [200, 1, 1, 3], [1000])
"""New tokens of each sequence of a step."""
WIDTH, STATE = 4, 16
"""Taps of a convolution, and numbers of a Mamba's state."""
HEADS = ((2, 4, 32, 48), (16, 32, 128, 128))
"""Key heads, heads, width of keys and of values; the last are Qwen3-Next's."""
CROWDS = (1, 8, 32, 128)
"""Sequences of a decode step that is timed."""
PROMPTS = (16, 512, 4096)
"""Tokens of a prompt that is timed."""
DEFINITIONS = Kernels()


def given(name: str, sizes: tuple[int, ...], tokens: int, dtype: torch.dtype, device: str) -> list[Any]:
    """What the kernel ``name`` works on, but for states and runs."""
    key_heads, heads, dim, value_dim = sizes
    channels = heads * value_dim
    x = torch.randn(tokens, channels, device=device).to(dtype)
    if name == "causal_conv":
        return [x, torch.randn(channels, WIDTH, device=device).to(dtype), None]
    if name == "selective_scan":
        b, c = torch.randn(tokens, 2 * STATE, device=device).to(dtype).chunk(2, -1)
        return [x, torch.rand(tokens, channels, device=device), -torch.rand(channels, STATE, device=device), b, c]
    q, k = (torch.randn(tokens, 2 * key_heads, dim, device=device).to(dtype) * dim**-0.5).chunk(2, 1)
    found = [q, k, x.view(tokens, heads, value_dim), -torch.rand(tokens, heads, device=device)]
    return [*found, torch.rand(tokens, heads, device=device).to(dtype)] if name == "gated_delta_rule" else found


def states(name: str, sizes: tuple[int, ...], rows: int, dtype: torch.dtype, device: str) -> Tensor:
    """Random states for the kernel ``name``."""
    _, heads, dim, value_dim = sizes
    shape, kind = (heads, dim, value_dim), torch.float32
    if name == "causal_conv":
        shape, kind = (WIDTH - 1, heads * value_dim), dtype  # type: ignore[assignment]
    elif name == "selective_scan":
        shape = (heads * value_dim, STATE)  # type: ignore[assignment]
    return torch.randn(rows, *shape, device=device).to(kind)


NAMES = ("causal_conv", "linear_attention", "gated_delta_rule", "selective_scan")


@torch.inference_mode()
def recurrent(device: str) -> dict[str, float]:
    """The largest relative error of each kernel and dtype; raises if one is too large."""
    torch.manual_seed(13)
    made, worst = kernels_of(device), dict[str, float]()
    for name in NAMES:
        for dtype in (torch.float32, torch.bfloat16):
            for where, error, bound in _errors(name, dtype, device, getattr(made, name)):
                if not error <= bound:
                    raise AssertionError(f"{name} in {dtype}, {where}: relative error {error:.2e}, more than {bound}")
                worst[f"{name} {dtype}"] = max(worst.get(f"{name} {dtype}", 0.0), error)
    return worst


def _errors(
    name: str, dtype: torch.dtype, device: str, kernel: Callable[..., Tensor]
) -> Iterator[tuple[str, float, float]]:
    """Where, relative error against the definition, and the largest that is allowed."""
    definition = getattr(scanning, name)
    for sizes in HEADS:
        for lengths in LENGTHS:
            rows = list(range(2, 2 + len(lengths)))[::-1]
            runs = Runs.of(rows, list(lengths), torch.device(device))
            inputs = given(name, sizes, sum(lengths), dtype, device)
            mine = states(name, sizes, 2 + len(lengths), dtype, device)
            theirs = mine.clone()
            expected, found = definition(*inputs, theirs, runs), kernel(*inputs, mine, runs)
            where = f"{sizes}, {list(lengths)} tokens"
            yield where, relative_error(found, expected), 10 * BOUNDS[dtype]
            yield f"{where}, states", relative_error(mine, theirs), 10 * BOUNDS[mine.dtype]


@torch.inference_mode()
def recurrent_speed(device: str) -> dict[str, Any]:
    """Seconds of each kernel for steps of one token each, and for a prompt, beside the definition's and beside what
    reading and writing the states takes."""
    bandwidth, made, found = ceilings(device)["copy_bandwidth"], kernels_of(device), dict[str, Any]()
    for name in NAMES:
        for lengths in [*([1] * crowd for crowd in CROWDS), *([prompt] for prompt in PROMPTS)]:
            what = f"{len(lengths)} x 1" if lengths[0] == 1 else f"1 x {lengths[0]}"
            runs = Runs.of(list(range(2, 2 + len(lengths))), lengths, torch.device(device))
            inputs = given(name, HEADS[-1], sum(lengths), torch.bfloat16, device)
            memory = states(name, HEADS[-1], 2 + len(lengths), torch.bfloat16, device)
            seconds, plain = (
                median_seconds(partial(getattr(one, name), *inputs, memory, runs), device)
                for one in (made, DEFINITIONS)
            )
            moved = 2 * len(lengths) * memory[0].numel() * memory.element_size()
            found[f"{name}, {what}"] = {
                "seconds": seconds,
                "times_as_fast": plain / seconds,
                "share_of_limit": moved / bandwidth / seconds,
            }
    return found
