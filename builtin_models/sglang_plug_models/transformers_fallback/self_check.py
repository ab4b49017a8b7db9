"""Self-check: a model with our attention computes the same as with transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import AttentionBackend, ForwardBatch, KVPool, Model

from .reference import refusal

LENGTHS = (9, 6)
FIRST = (5, 3)
"""Tokens of each sequence in the first step; then all but the last one, which is decoded."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
ROUGH = 0.1
"""Tolerance for dtypes of low precision. Attention across sequences or to wrong tokens differs by more."""
ROUGHEST = 0.5
"""Tolerance for keys and values in eight bits."""


@torch.inference_mode()
def check(
    config: Any, reference: nn.Module, model: Model, attach: Callable[[], None], backend: AttentionBackend
) -> None:
    """Compare logits of two sequences, computed in chunks and one batch, with those of each alone.

    Args:
        config: of the checkpoint.
        reference: transformers' model, untouched.
        model: ours, which works once ``attach`` was called.
        attach: makes ``model`` out of ``reference``, which is then of no use alone.
        backend: our attention.

    Raises ``ConfigError`` if they differ.
    """
    parameter = next(reference.parameters())
    device, dtype = parameter.device, parameter.dtype
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(config.vocab_size, (length,), generator=generator).to(device) for length in LENGTHS]
    expected = [reference(input_ids=prompt[None], use_cache=False).logits[0].float() for prompt in prompts]
    attach()
    result = _served(model, prompts, backend, dtype, device)
    for mine, theirs in zip(result, expected, strict=True):
        error = float((mine.float() - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6))
        if not error <= _tolerance(dtype, backend.shape.kv_dtype):
            raise refusal(
                config,
                f"with this engine's attention its logits are off by {error:.2g} of the greatest one"
                + _advice(backend.shape.kv_dtype),
            )


def _tolerance(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> float:
    if kv_dtype is None:
        return TOLERANCE.get(dtype, ROUGH)
    return ROUGHEST if kv_dtype.itemsize == 1 else ROUGH


def _advice(kv_dtype: torch.dtype | None) -> str:
    if kv_dtype is None or kv_dtype.itemsize > 1:
        return ""
    name = str(kv_dtype).removeprefix("torch.")
    return f"; keys and values are kept in {name}, perhaps without scales that fit: try --kv-cache-dtype bfloat16"


def _served(
    model: Model, prompts: list[Tensor], backend: AttentionBackend, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    pool = KVPool.of(backend.shape, slots=sum(LENGTHS) + 1, dtype=dtype, device=device)
    pool.use_scales(model.kv_scales)
    ends = [list(FIRST), [length - 1 for length in LENGTHS], list(LENGTHS)]
    pieces: list[list[Tensor]] = [[] for _ in prompts]
    for before, after in pairwise([[0] * len(prompts), *ends]):
        batch = _batch(prompts, before, after, pool, device)
        backend.plan(batch)
        logits = torch.split(model.head(model(batch)), batch.query_lens)
        for piece, logit in zip(pieces, logits, strict=True):
            piece.append(logit)
    return [torch.cat(piece) for piece in pieces]


def _batch(
    prompts: list[Tensor], before: list[int], after: list[int], pool: KVPool, device: torch.device
) -> ForwardBatch:
    spans = list(zip(before, after, strict=True))
    first = [1 + sum(LENGTHS[:row]) for row in range(len(prompts))]  # slot 0 is a spare
    tables = torch.zeros(len(prompts), max(after), dtype=torch.int64, device=device)
    for row, end in enumerate(after):
        tables[row, :end] = torch.arange(first[row], first[row] + end)
    return ForwardBatch(
        input_ids=torch.cat([prompt[start:end] for prompt, (start, end) in zip(prompts, spans, strict=True)]),
        positions=torch.cat([torch.arange(start, end) for start, end in spans]).to(device),
        slots=torch.cat([tables[row, start:end] for row, (start, end) in enumerate(spans)]),
        tables=tables,
        query_lens=[end - start for start, end in spans],
        kv_lens=after,
        kv=pool,
    )
