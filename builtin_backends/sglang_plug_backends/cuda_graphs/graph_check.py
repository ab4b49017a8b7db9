"""Checks a captured decode step: its replay on other inputs must give the same logits as an eager run.

A recorder does not capture what a model computes in Python, nor what it reads from the Python lists of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice

import torch
from torch import Tensor

from sglang_plug import AttentionBackend, CannotCaptureError, ForwardBatch, GraphCapable, KVPool, Model, StatePool

LONGEST = 24
"""Tokens of the longest context among several."""


def check_replay(
    replay: Callable[[], None], model: Model, backend: AttentionBackend, batch: ForwardBatch, logits: Tensor
) -> None:
    """Replace the captured tokens, contexts and slots by others, and compare the bits of replayed and eager logits.

    The contents of ``batch`` have changed afterwards; those of the pool are restored.

    Args:
        replay: replays the captured step.
        model: the captured model.
        backend: its attention backend, which planned ``batch``.
        batch: the captured batch; has a pool.
        logits: ``[B, vocabulary]``, the tensor to which ``replay`` writes the logits.

    Raises:
        CannotCaptureError: the logits differ.
    """
    assert isinstance(backend, GraphCapable) and batch.kv is not None
    contexts = _contexts(batch, batch.kv)
    _fill(batch, contexts, logits.shape[1])
    eager = replace(batch, query_lens=list(batch.query_lens), kv_lens=list(batch.kv_lens), plan=None)
    used = torch.tensor(sorted(set(chain(*contexts))), device=batch.slots.device)
    borrowed = [(part, used) for part in batch.kv.parts]
    if (states := batch.recurrent) is not None:
        borrowed += [(state, states.spans.rows) for state in states.pool.states]
    with _borrowed(borrowed) as refill:
        refill()
        backend.plan(eager)
        expected = model.head(model(eager))
        refill()
        backend.refresh(batch)
        replay()
    if not same_bits(expected, logits):
        raise CannotCaptureError(
            f"{type(model).__name__} computes something in Python, which a replay with {len(contexts)} "
            "sequences does not do again"
        )


def _contexts(batch: ForwardBatch, kv: KVPool) -> list[list[int]]:
    """Return the slots of each sequence's context, of different lengths; shared if the pool is very small.

    A single sequence has the longest possible context, which repeats the same slots.
    """
    page = batch.page_size
    pages = max(1, kv.slots // page - 1)  # without the spare page
    each = max(1, min(-(-LONGEST // page), pages // len(batch.kv_lens)))
    max_length = batch.tables.shape[1] - page + 1  # tables end with a whole page; the model's positions may end earlier
    longest = min(each * page, max_length)
    firsts = [(1 + row * each % pages) * page for row in range(len(batch.kv_lens))]
    contexts = [list(range(first, first + max(1, longest - row))) for row, first in enumerate(firsts)]
    if len(contexts) > 1:
        return contexts
    whole = range(firsts[0], firsts[0] + each * page)
    return [list(islice(cycle(whole), max_length))]


def _fill(batch: ForwardBatch, contexts: list[list[int]], vocabulary: int) -> None:
    """Write ``contexts`` to the static inputs."""
    for row, context in enumerate(contexts):
        batch.tables[row, : len(context)] = torch.tensor(context)
    lengths = list(map(len, contexts))
    batch.kv_lens[:] = lengths
    batch.positions.copy_(torch.tensor(lengths) - 1)
    batch.slots.copy_(torch.tensor([context[-1] for context in contexts]))
    batch.input_ids.copy_(torch.arange(3, 3 + 5 * len(contexts), 5) % vocabulary)
    if (states := batch.recurrent) is not None:
        first, end = StatePool.RESERVED, StatePool.RESERVED + len(contexts)
        rows = torch.arange(first, end)
        states.spans.rows.copy_(rows if states.pool.rows >= end else torch.zeros_like(rows))


@contextmanager
def _borrowed(parts: list[tuple[Tensor, Tensor]]) -> Iterator[Callable[[], None]]:
    """Yield a function that fills these rows of tensors with noise, the same each time; restore them at the end."""
    before = [part[rows] for part, rows in parts]
    generator = torch.Generator().manual_seed(7)
    noise = [torch.randn(held.shape, generator=generator, dtype=torch.float32).to(held) for held in before]

    def fill(contents: list[Tensor]) -> None:
        for (part, rows), values in zip(parts, contents, strict=True):
            part[rows] = values

    try:
        yield partial(fill, noise)
    finally:
        fill(before)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Report whether two tensors have the same dtype, shape and bits."""
    same = first.dtype == second.dtype and first.shape == second.shape
    return same and torch.equal(first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8))
