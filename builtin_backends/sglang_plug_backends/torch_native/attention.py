"""Attention on plain torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sglang_plug import Attention, AttentionBackend, ForwardBatch, KVPool, StoredCapable, WeighingCapable
from sglang_plug.batch import narrowed, widened

from .blocks import attend_in_blocks
from .partial import Partial, attend, join
from .plan import DecodePlan, ExtendPlan, Plan, plan
from .wide import attend_wide

BLOCKS_FROM = 8192
"""Queries times keys of a sequence from which on they are computed in blocks."""
WIDE_HEADS, WIDE_FROM = 2, 8
"""Most key heads, and fewest decodes, for which all key heads are multiplied at once."""


class TorchAttention(AttentionBackend, StoredCapable, WeighingCapable):
    """Gathers keys and values from the pool and attends with torch's own functions.

    Values that are a part of the keys are not cut out: whole keys take their place, and the result is cut. Torch's
    fast paths want both of one width, and keys are gathered once.
    """

    def plan(self, batch: ForwardBatch) -> None:
        """Sort the step's sequences into those with one new token and those with more."""
        batch.plan = plan(batch, share=True)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """``[T, heads, dim]``, ``[T, kv_heads, dim]``, ``[T, kv_heads, value_dim]`` to ``[T, heads, value_dim]``."""
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
        return self.run_stored(layer, q, k, v, batch)

    def run_stored(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """As ``run``, where the pool holds ``k`` and ``v`` already."""
        if batch.kv is not None and batch.kv.values_in_keys:
            return self._run(layer, q, k, k, batch)[..., : v.shape[-1]]
        return self._run(layer, q, k, v, batch)

    def run_weighed(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """As ``run``, and the logarithm of the sum of the exponentials of each query's logits, ``[T, heads]``."""
        width = v.shape[-1]
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
            v = k if batch.kv.values_in_keys else v
            if batch.kv.k[layer.index].dtype != k.dtype:
                k, v = _as_kept(batch.kv, layer, k, v)
        found: Plan = batch.plan
        out, weights = q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[:2], dtype=torch.float32)
        for extend in found.extends:
            rows = slice(extend.start, extend.start + extend.count)
            part = _extend_weighed(layer, q[rows], k[rows], v[rows], batch, extend)
            assert part.weight is not None
            out[rows], weights[rows] = part.out[0].transpose(0, 1), part.weight[0, ..., 0].T
        if found.decode is not None:
            places = slice(None) if found.decode.rows is None else found.decode.rows
            part = _decode_weighed(layer, q[places], batch, found.decode)
            assert part.weight is not None
            out[places] = part.out.reshape(-1, *out.shape[1:])
            weights[places] = part.weight.reshape(-1, weights.shape[1])
        return out[..., :width], weights

    def _run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        found: Plan = batch.plan
        if found.decode is not None and found.decode.rows is None:
            return _decode(layer, q, batch, found.decode)
        if batch.kv is not None and batch.kv.k[layer.index].dtype != k.dtype:
            k, v = _as_kept(batch.kv, layer, k, v)
        out = q.new_empty(q.shape[0], q.shape[1], v.shape[-1])
        for extend in found.extends:
            rows = slice(extend.start, extend.start + extend.count)
            out[rows] = _extend(layer, q[rows], k[rows], v[rows], batch, extend)
        if found.decode is not None:
            assert found.decode.rows is not None
            out.index_copy_(0, found.decode.rows, _decode(layer, q[found.decode.rows], batch, found.decode))
        return out


def _decode(layer: Attention, q: Tensor, batch: ForwardBatch, part: DecodePlan) -> Tensor:
    """One new token of each of ``B`` sequences, ``[B, heads, dim]`` to ``[B, heads, value_dim]``."""
    assert batch.kv is not None
    batch_size, heads, dim = q.shape
    kv_heads = batch.kv.k[layer.index].shape[1]
    # the heads that share keys become rows of one query: no key is read twice
    grouped = q.reshape(batch_size, kv_heads, heads // kv_heads, dim)
    k, v = _read(batch.kv, layer, q.dtype, part.gather)  # [B, longest, kv_heads, dim]
    window = layer.window
    if part.shared is None and layer.softcap is None and _suits_wide(grouped, v):
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
    prefix = prefix.map(lambda one: one.view(kv_heads, batch_size, heads // kv_heads, -1).transpose(0, 1))
    own = attend(grouped, k, v, layer, mask=part.mask(None, q.dtype), weigh=True)
    return join(prefix, own).to(q.dtype).reshape(batch_size, heads, -1)


def _decode_windowed(
    layer: Attention, q: Tensor, shared: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], part: DecodePlan
) -> Tensor:
    """A layer with a window in a step that was planned with a common prefix: put the two together again."""
    size = q.shape[0]
    k, v = (torch.cat((one.expand(size, -1, -1, -1), two), dim=2) for one, two in zip(shared, own, strict=True))
    out = attend(q, k, v, layer, mask=part.mask(layer.window, q.dtype, shared[0].shape[2])).out
    return out.reshape(size, q.shape[1] * q.shape[2], -1)


def _extend(layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, part: ExtendPlan) -> Tensor:
    """Several new tokens of one sequence, ``[count, heads, dim]`` to ``[count, heads, value_dim]``."""
    length = part.count + (0 if part.prefix is None else len(part.prefix))
    window = layer.window if layer.window is not None and layer.window < length else None
    blocks = layer.causal and layer.softcap is None and _suits_blocks(q, length)
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
        found = attend(_heads(q), _heads(k), _heads(v), layer)
    elif window is None:
        found = attend(_heads(q), _heads(k), _heads(v), layer, causal=True)
    else:
        found = attend(_heads(q), _heads(k), _heads(v), layer, mask=part.mask(window, q.device))
    return found.out[0].transpose(0, 1)


def _decode_weighed(layer: Attention, q: Tensor, batch: ForwardBatch, part: DecodePlan) -> Partial:
    """As ``_decode``, with weights; ``[B, kv_heads, group, value_dim]``."""
    assert batch.kv is not None
    grouped = q.reshape(len(q), batch.kv.k[layer.index].shape[1], -1, q.shape[2])
    k, v = (one.transpose(1, 2) for one in _read(batch.kv, layer, q.dtype, part.gather))
    before = 0
    if (shared := part.shared) is not None:
        common = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, shared))
        k, v = (
            torch.cat((_heads(one).expand(len(q), -1, -1, -1), two), dim=2)
            for one, two in zip(common, (k, v), strict=True)
        )
        before = len(shared)
    mask = part.mask(layer.window, q.dtype, before)
    return attend(grouped, k, v, layer, mask=mask, weigh=True)


def _extend_weighed(
    layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, part: ExtendPlan
) -> Partial:
    """As ``_extend``, with weights; ``[1, heads, count, value_dim]``."""
    if (prefix := part.prefix) is not None:
        assert batch.kv is not None
        k_before, v_before = _read(batch.kv, layer, q.dtype, lambda pool: pool.index_select(0, prefix))
        k, v = torch.cat((k_before, k)), torch.cat((v_before, v))
    mask = part.mask(layer.window, q.device) if layer.causal else None
    return attend(_heads(q), _heads(k), _heads(v), layer, mask=mask, weigh=True)


def _as_kept(kv: KVPool, layer: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The step's keys and values as a pool of another dtype gives them back: what a token sees does not depend on when
    it was computed."""
    dtype, k_scale, v_scale = kv.k[layer.index].dtype, kv.k_scale[layer.index], kv.v_scale[layer.index]
    keys = widened(narrowed(k, dtype, k_scale), k.dtype, k_scale)
    return keys, keys if v is k else widened(narrowed(v, dtype, v_scale), v.dtype, v_scale)


def _read(kv: KVPool, layer: Attention, dtype: torch.dtype, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What ``take`` gives of the layer's keys and values; whole keys for both if the values are a part of them."""
    keys = widened(take(kv.k[layer.index]), dtype, kv.k_scale[layer.index])
    if kv.values_in_keys:
        return keys, keys
    return keys, widened(take(kv.v[layer.index]), dtype, kv.v_scale[layer.index])


def _suits_blocks(q: Tensor, length: int) -> bool:
    """True where whole matrix products are faster than torch's flash attention."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[0] * length >= BLOCKS_FROM


def _suits_wide(q: Tensor, v: Tensor) -> bool:
    """True where one product over all key heads is faster than one for each."""
    few = q.shape[1] <= WIDE_HEADS and q.shape[0] >= WIDE_FROM
    return few and q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-1] == v.shape[-1]


def _heads(x: Tensor) -> Tensor:
    """``[N, heads, dim]`` to ``[1, heads, N, dim]``."""
    return x.transpose(0, 1)[None]
