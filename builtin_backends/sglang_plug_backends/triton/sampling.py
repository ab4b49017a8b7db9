"""Masking of logits and sampling of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import Kernels, SamplingOptions
from sglang_plug_backends.triton.kernels.sampling import draw_kernel, mask_kernel

from .launch import launch_options, power_of_two, runs

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
MASK_BLOCK = 4096
DRAW_BLOCK, DRAW_WIDE = 2048, 8192
DRAW_WARPS = 16


def mask_logits(logits: Tensor, rows: Tensor | None, mask: Tensor, *, overlap: bool = False) -> Tensor:
    """Apply the definition in place, directly from the bits."""
    if not runs(logits, mask) or not (logits.is_contiguous() and mask.is_contiguous()):
        return DEFINITIONS.mask_logits(logits, rows, mask)
    count, words = mask.shape
    width = logits.shape[-1]
    index = torch.arange(count, device=logits.device) if rows is None else rows
    block = min(MASK_BLOCK, power_of_two(width))
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        mask_kernel[(count, -(-width // block))](
            logits, index, mask, width, words, BLOCK=block, **launch_options(logits.device, overlap)
        )
    return logits


def sample_tokens(
    logits: Tensor,
    options: SamplingOptions,
    uniform: Tensor,
    *,
    overlap: bool = False,
    block: int = DRAW_BLOCK,
    wide_block: int = DRAW_WIDE,
) -> Tensor:
    """Sample as defined, without a sort: tokens share the numbers in [0, 1) in the order of their ids.

    A row is read in blocks of ``block`` tokens where they are compared with several values, and of ``wide_block`` where
    they are compared with one.

    The kept tokens are the same except for rounding: logits that differ by less than a few millionths of the
    temperature count as equal, and a token at the very edge of top-p may be kept or not.
    """
    if not runs(logits) or not logits.is_contiguous():
        return DEFINITIONS.sample_tokens(logits, options, uniform)
    rows, width = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    listed = torch.empty(rows, width, dtype=torch.int32, device=logits.device)
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]
        draw_kernel[(rows,)](
            logits,
            listed,
            options.temperature,
            options.top_k,
            options.top_p,
            options.min_p,
            uniform,
            out,
            width,
            WIDE=min(wide_block, power_of_two(width)),
            BLOCK=min(block, power_of_two(width)),
            num_warps=DRAW_WARPS,
            **launch_options(logits.device, overlap),
        )
    return out
