"""Conformance test of recorded forward passes: replays compute the same bits as the forward pass itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.contracts.model.attention import (
    Attention,
    AttentionBackend,
    CannotCaptureError,
    ReplayCapable,
    TokenReplay,
)
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool

from .attention_cases import Case

HIDDEN = 32
VOCABULARY = 64


class SmallModel:
    """A forward pass of torch operations and the attention layers of a case: ``[T, HIDDEN]`` hidden states."""

    def __init__(self, layers: list[Attention], case: Case, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        self._layers, self._heads = layers, (case.heads, case.kv_heads, case.kv_heads)
        value_dim = case.value_dim or case.dim
        self._widths = [case.heads * case.dim, case.kv_heads * case.dim, case.kv_heads * value_dim]

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=generator) * columns**-0.5).to(device, dtype)

        self._embedding = weight(VOCABULARY, HIDDEN)
        self._inputs = [weight(sum(self._widths), HIDDEN) for _ in layers]
        self._outputs = [weight(HIDDEN, case.heads * value_dim) for _ in layers]

    def __call__(self, batch: ForwardBatch) -> Tensor:
        hidden = F.embedding(batch.input_ids, self._embedding)
        hidden = hidden + torch.sin(batch.positions[:, None].to(hidden.dtype))
        for layer, into, out_of in zip(self._layers, self._inputs, self._outputs, strict=True):
            q, k, v = torch.split(F.linear(hidden, into), self._widths, dim=-1)
            heads = (x.view(len(x), count, -1) for x, count in zip((q, k, v), self._heads, strict=True))
            hidden = hidden + F.linear(layer(*heads, batch).flatten(1), out_of)
        return hidden


class ModelThatReadsLengths(SmallModel):
    """Depends on the number of sequences, which differs between steps."""

    def __call__(self, batch: ForwardBatch) -> Tensor:
        return super().__call__(batch) * len(batch.query_lens)


class ModelThatReadsValues(SmallModel):
    """Depends on a number that only the computation of the step knows."""

    def __call__(self, batch: ForwardBatch) -> Tensor:
        hidden = super().__call__(batch)
        return hidden * 2 if hidden.sum().item() > 0 else hidden


def check_replay(
    case: Case, backend: AttentionBackend, layers: list[Attention], batches: list[ForwardBatch], dtype: torch.dtype
) -> None:
    """Record a forward pass, and replay it for ``batches``, for one token and for as many as were recorded.

    Results and the pool must have the same bits as without a recording; of ``output_rows``, these rows only. A forward
    pass that reads lengths or values must be refused with ``CannotCaptureError``.

    Raises:
        AssertionError: says which step differs, and where.
    """
    kv = batches[0].kv
    assert isinstance(backend, ReplayCapable) and kv is not None
    size, device = backend.recorded_tokens, kv.k[0].device
    assert isinstance(size, int) and size > 0, f"recorded_tokens is {size!r}, not a number of tokens"
    for refused in (ModelThatReadsLengths, ModelThatReadsValues):
        _check_refused(refused(layers, case, dtype, device), backend, kv, case.page_size)
    model = SmallModel(layers, case, dtype, device)
    before = [part.clone() for part in kv.parts]
    replay = _record(model, backend, kv, case.page_size)
    _put_back(kv, before)
    fitting = [batch for batch in batches if len(batch.input_ids) <= size]
    again = [_with_tokens(batch, 5) for batch in reversed(fitting)]
    for batch in (*(_with_tokens(batch, 3) for batch in fitting), backend.largest_step(kv, case.page_size), *again):
        for rows in _output_rows(batch):
            _check_step(model, replay, backend, replace(batch, output_rows=rows))


def _check_refused(model: SmallModel, backend: ReplayCapable, kv: KVPool, page_size: int) -> None:
    before = [part.clone() for part in kv.parts]
    try:
        _record(model, backend, kv, page_size)
    except CannotCaptureError:
        _put_back(kv, before)
        return
    raise AssertionError(f"record() accepts a {type(model).__name__}; it must raise CannotCaptureError")


def _record(model: SmallModel, backend: ReplayCapable, kv: KVPool, page_size: int) -> TokenReplay:
    replay = backend.record_largest_step(model, kv, page_size)
    assert isinstance(replay, TokenReplay), f"record() returned {type(replay).__name__}, not a TokenReplay"
    return replay


def _with_tokens(batch: ForwardBatch, factor: int) -> ForwardBatch:
    return replace(batch, input_ids=(batch.positions * factor + batch.slots) % VOCABULARY)


def _output_rows(batch: ForwardBatch) -> Iterator[list[int] | None]:
    """Yield the choices of rows whose results are read: all, the last of each sequence, one and none."""
    ends = torch.tensor(batch.query_lens).cumsum(0) - 1
    yield None
    yield ends.tolist()
    yield [int(ends[-1])]
    yield []


def _check_step(model: SmallModel, replay: TokenReplay, backend: ReplayCapable, batch: ForwardBatch) -> None:
    assert batch.kv is not None
    read = "all rows" if batch.output_rows is None else f"rows {batch.output_rows}"
    where = f"a replay of new tokens {batch.query_lens}, of which {read} are read,"
    before = [part.clone() for part in batch.kv.parts]
    backend.plan(batch)
    computed = model(batch)
    stored = [part.clone() for part in batch.kv.parts]
    _put_back(batch.kv, before)
    backend.plan(batch)
    replayed = replay.run(batch)
    assert isinstance(replayed, Tensor), f"{where} returned {type(replayed).__name__}, not a tensor"
    assert replayed.shape == computed.shape, f"{where} has the shape {list(replayed.shape)}, not {list(computed.shape)}"
    rows = list(range(len(computed))) if batch.output_rows is None else batch.output_rows
    wrong = [row for row in rows if not torch.equal(replayed[row], computed[row])]
    assert not wrong, f"{where} differs from the forward pass in rows {wrong}"
    for actual, expected in zip(batch.kv.parts, stored, strict=True):
        changed = (actual != expected).flatten(1).any(1)
        changed[0] = False  # padding
        assert not changed.any(), f"{where} stores other keys or values, first in slot {int(changed.nonzero()[0])}"
    _put_back(batch.kv, before)


def _put_back(kv: KVPool, parts: list[Tensor]) -> None:
    for part, before in zip(kv.parts, parts, strict=True):
        part.copy_(before)
