"""Attention on plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    ForwardBatch,
    FusedStoreCapable,
    KVPool,
    LSECapable,
)
from sglang_plug.contracts.model.batch import narrowed, widened

from .all_heads import attend_wide
from .partial import Partial, attend, join
from .plan import DecodePlan, ExtendPlan, Plan, plan
from .query_blocks import attend_in_blocks
from .thresholds import MEASURED, Thresholds


class TorchAttention(AttentionBackend, FusedStoreCapable, LSECapable):
    """Attention that gathers keys and values from the pool and uses torch's own functions.

    Values that are a slice of the keys are not cut out: whole keys are used as values, and the result is cut. Torch's
    fast paths require equal widths, and keys are gathered once.

    Args:
        shape: the shape of the model's attention.
        device: device of the tensors.
        settings: not used; the backend has none.
        thresholds: sizes from which a step is computed in another way.
    """

    def __init__(
        self, shape: AttentionShape, device: torch.device, settings: Any = None, *, thresholds: Thresholds = MEASURED
    ) -> None:
        super().__init__(shape, device, settings)
        self._thresholds = thresholds

    def plan(self, batch: ForwardBatch) -> None:
        """Divide the step's sequences into those with one new token and those with more."""
        batch.plan = plan(batch, min_shared=self._thresholds.shared_prefix)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Store the keys and values and attend.

        Shapes: ``[T, heads, dim]``, ``[T, kv_heads, dim]``, ``[T, kv_heads, value_dim]`` to ``[T, heads, value_dim]``.
        """
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
        return self.run_after_store(layer, q, k, v, batch)

    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Attend like ``run`` if the pool already contains ``k`` and ``v``."""
        if batch.kv is not None and batch.kv.values_in_keys:
            return self._run(layer, q, k, k, batch)[..., : v.shape[-1]]
        return self._run(layer, q, k, v, batch)

    def run_with_lse(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Attend like ``run`` and return the log-sum-exp of each query's logits too, ``[T, heads]``."""
        width = v.shape[-1]
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
            v = k if batch.kv.values_in_keys else v
            if batch.kv.k[layer.index].dtype != k.dtype:
                k, v = _as_kept(batch.kv, layer, k, v)
        result: Plan = batch.plan
        out, weights = q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[:2], dtype=torch.float32)
        for extend in result.extends:
            rows = slice(extend.start, extend.start + extend.count)
            part = _extend_with_lse(layer, q[rows], k[rows], v[rows], batch, extend)
            assert part.weight is not None
            out[rows], weights[rows] = part.out[0].transpose(0, 1), part.weight[0, ..., 0].T
        if result.decode is not None:
            decode_rows = slice(None) if result.decode.rows is None else result.decode.rows
            part = _decode_with_lse(layer, q[decode_rows], batch, result.decode)
            assert part.weight is not None
            out[decode_rows] = part.out.reshape(-1, *out.shape[1:])
            weights[decode_rows] = part.weight.reshape(-1, weights.shape[1])
        return out[..., :width], weights

    def _run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        result: Plan = batch.plan
        if result.decode is not None and result.decode.rows is None:
            return _decode(layer, q, batch, result.decode, self._thresholds)
        if batch.kv is not None and batch.kv.k[layer.index].dtype != k.dtype:
            k, v = _as_kept(batch.kv, layer, k, v)
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
        for extend in result.extends:
            rows = slice(extend.start, extend.start + extend.count)
            out[rows] = _extend(layer, q[rows], k[rows], v[rows], batch, extend, self._thresholds)
        if result.decode is not None:
            decode_rows = result.decode.rows
            assert decode_rows is not None
            out.index_copy_(0, decode_rows, _decode(layer, q[decode_rows], batch, result.decode, self._thresholds))
        return out


def _decode(layer: Attention, q: Tensor, batch: ForwardBatch, part: DecodePlan, thresholds: Thresholds) -> Tensor:
    """Attend with one new token of each of ``B`` sequences, ``[B, heads, dim]`` to ``[B, heads, value_dim]``."""
    assert batch.kv is not None
    batch_size, heads, dim = q.shape
    kv_heads = batch.kv.k[layer.index].shape[1]
    # heads with shared keys become rows of one query, so that no key is read twice
    grouped = q.reshape(batch_size, kv_heads, heads // kv_heads, dim)
    k, v = _read(batch.kv, layer, q.dtype, part.gather)  # [B, longest, kv_heads, dim]
    window = layer.window
    if part.shared is None and layer.softcap is None and thresholds.suits_wide(grouped, v):
        return attend_wide(grouped, k, v, layer.scale, part.mask(window, q.dtype)).reshape(batch_size, heads, -1)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if (shared := part.shared) is None:
        own = attend(grouped, k, v, layer, mask=part.mask(window, q.dtype))
        return own.out.reshape(batch_size, heads, -1)
    k_shared, v_shared = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, shared))
    k_shared, v_shared = _heads(k_shared), _heads(v_shared)  # [1, kv_heads, P, dim]
    if window is not None:
        return _decode_windowed(layer, grouped, (k_shared, v_shared), (k, v), part)
    rows = grouped.transpose(0, 1).reshape(1, kv_heads, -1, dim)  # all sequences' rows against the one prefix
    prefix = attend(rows, k_shared, v_shared, layer, weigh=True)
    prefix = prefix.map(lambda item: item.view(kv_heads, batch_size, heads // kv_heads, -1).transpose(0, 1))
    own = attend(grouped, k, v, layer, mask=part.mask(None, q.dtype), weigh=True)
    return join(prefix, own).to(q.dtype).reshape(batch_size, heads, -1)


def _decode_windowed(
    layer: Attention, q: Tensor, shared: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], part: DecodePlan
) -> Tensor:
    """Run a windowed layer in a step planned with a common prefix: rejoin prefix and rest."""
    size = q.shape[0]
    k, v = (torch.cat((item.expand(size, -1, -1, -1), two), dim=2) for item, two in zip(shared, own, strict=True))
    out = attend(q, k, v, layer, mask=part.mask(layer.window, q.dtype, shared[0].shape[2])).out
    return out.reshape(size, q.shape[1] * q.shape[2], -1)


def _extend(
    layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, part: ExtendPlan, thresholds: Thresholds
) -> Tensor:
    """Attend with several new tokens of one sequence, ``[count, heads, dim]`` to ``[count, heads, value_dim]``."""
    length = part.count + (0 if part.prefix is None else len(part.prefix))
    window = layer.window if layer.window is not None and layer.window < length else None
    blocks = layer.causal and layer.softcap is None and thresholds.suits_blocks(q, length)
    if (prefix := part.prefix) is not None:
        assert batch.kv is not None
        k_before, v_before = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, prefix))
        if window is None and layer.causal and not blocks:
            own = attend(_heads(q), _heads(k), _heads(v), layer, causal=True, weigh=True)
            earlier = attend(_heads(q), _heads(k_before), _heads(v_before), layer, weigh=True)
            return join(earlier, own)[0].transpose(0, 1).to(q.dtype)
        k, v = torch.cat((k_before, k)), torch.cat((v_before, v))
    if blocks:
        return attend_in_blocks(q, k, v, layer.scale, window)
    if not layer.causal:
        result = attend(_heads(q), _heads(k), _heads(v), layer)
    elif window is None:
        result = attend(_heads(q), _heads(k), _heads(v), layer, causal=True)
    else:
        result = attend(_heads(q), _heads(k), _heads(v), layer, mask=part.mask(window, q.device))
    return result.out[0].transpose(0, 1)


def _decode_with_lse(layer: Attention, q: Tensor, batch: ForwardBatch, part: DecodePlan) -> Partial:
    """Attend like ``_decode`` with log-sum-exp weights; ``[B, kv_heads, group, value_dim]``."""
    assert batch.kv is not None
    grouped = q.reshape(len(q), batch.kv.k[layer.index].shape[1], -1, q.shape[2])
    k, v = (tensor.transpose(1, 2) for tensor in _read(batch.kv, layer, q.dtype, part.gather))
    before = 0
    if (shared := part.shared) is not None:
        common = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, shared))
        k, v = (
            torch.cat((_heads(item).expand(len(q), -1, -1, -1), two), dim=2)
            for item, two in zip(common, (k, v), strict=True)
        )
        before = len(shared)
    mask = part.mask(layer.window, q.dtype, before)
    return attend(grouped, k, v, layer, mask=mask, weigh=True)


def _extend_with_lse(
    layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, part: ExtendPlan
) -> Partial:
    """Attend like ``_extend`` with log-sum-exp weights; ``[1, heads, count, value_dim]``."""
    if (prefix := part.prefix) is not None:
        assert batch.kv is not None
        k_before, v_before = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, prefix))
        k, v = torch.cat((k_before, k)), torch.cat((v_before, v))
    mask = part.mask(layer.window, q.device) if layer.causal else None
    return attend(_heads(q), _heads(k), _heads(v), layer, mask=mask, weigh=True)


def _as_kept(kv: KVPool, layer: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Round the step's keys and values like a pool of another dtype does.

    The result for a token is then independent of when its context was computed.
    """
    dtype, k_scale, v_scale = kv.k[layer.index].dtype, kv.k_scale[layer.index], kv.v_scale[layer.index]
    keys = widened(narrowed(k, dtype, k_scale), k.dtype, k_scale)
    return keys, keys if v is k else widened(narrowed(v, dtype, v_scale), v.dtype, v_scale)


def _read(kv: KVPool, layer: Attention, dtype: torch.dtype, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Apply ``take`` to the layer's keys and values; whole keys for both if values are a slice of them."""
    keys = widened(take(kv.k[layer.index]), dtype, kv.k_scale[layer.index])
    if kv.values_in_keys:
        return keys, keys
    return keys, widened(take(kv.v[layer.index]), dtype, kv.v_scale[layer.index])


def _heads(x: Tensor) -> Tensor:
    """Transpose ``[N, heads, dim]`` to ``[1, heads, N, dim]``."""
    return x.transpose(0, 1)[None]
