"""Paged attention by the compiled library: one call per layer stores and attends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    ConfigError,
    ForwardBatch,
    GraphCapable,
    GraphRecorder,
    ReplayCapable,
)

from . import unsupported_reason
from .calls import AttentionCall, dense
from .library import load
from .recorder import CallRecorder, TorchOperations
from .token_recording import RECORDED_TOKENS, CallReplay, TokenRecording


class Plan:
    """The prepared call of a step, without the fields that differ per layer, and the tensors that it points to."""

    __slots__ = ("address", "call", "kept", "lengths")

    def __init__(self, call: AttentionCall, lengths: Tensor, kept: tuple[Tensor, ...]) -> None:
        self.call, self.lengths, self.kept, self.address = call, lengths, kept, ctypes.addressof(call)


class CompiledAttention(AttentionBackend, GraphCapable, ReplayCapable):
    """Paged attention in C++: few new tokens read keys and values in place, many pack them once."""

    recorded_tokens = RECORDED_TOKENS

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        super().__init__(shape, device, settings)
        reason = unsupported_reason(shape)
        if reason:
            raise ConfigError(
                f"attention backend avx512 does not serve this model: {reason}; use --attention-backend torch"
            )
        self._library = load()

    def plan(self, batch: ForwardBatch) -> None:
        """Store the arguments that all layers of the step share where the library reads them."""
        queries, lengths = torch.tensor(batch.query_lens), torch.tensor(batch.kv_lens)
        starts = queries.cumsum(0) - queries
        tables, slots = batch.tables.contiguous(), batch.slots.contiguous()
        shape = self.shape
        call = AttentionCall(
            slots=None if batch.kv is None else slots.data_ptr(),
            tables=tables.data_ptr(),
            starts=starts.data_ptr(),
            queries=queries.data_ptr(),
            lengths=lengths.data_ptr(),
            tokens=len(slots),
            sequences=len(batch.query_lens),
            table_width=tables.shape[1],
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            dim=shape.dim,
            value_dim=shape.value_dim or shape.dim,
            values_in_keys=shape.values_in_keys,
        )
        batch.plan = Plan(call, lengths, (queries, starts, tables, slots))

    def static_plan(self, batch: ForwardBatch) -> None:
        """Plan one new token of each sequence, with tables that stay at their addresses."""
        dense = batch.tables.is_contiguous() and batch.slots.is_contiguous()
        if not dense or any(count != 1 for count in batch.query_lens):
            raise ValueError(
                f"a static plan needs dense tables and slots, and one new token each, got {batch.query_lens}"
            )
        self.plan(batch)

    def refresh(self, batch: ForwardBatch) -> None:
        """Write the current lengths to the memory that the library reads."""
        batch.plan.lengths.numpy()[:] = batch.kv_lens

    def recorder(self) -> GraphRecorder:
        """Return a recorder of library calls and torch operations."""
        return CallRecorder(self._library)

    def record(self, forward: Callable[[ForwardBatch], Tensor], batch: ForwardBatch) -> CallReplay:
        """Record ``forward`` by writing down its library calls and torch operations; see ``ReplayCapable``."""
        recording = TokenRecording(self._library)
        with self._library.observe_calls(recording.call, compute=False), TorchOperations(recording):
            result = forward(batch)
        return recording.finish(result, batch)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Store the keys and values and attend.

        Shapes: ``[T, heads, dim]``, ``[T, kv_heads, dim]``, ``[T, kv_heads, value_dim]`` to ``[T, heads, value_dim]``.
        """
        if q.dtype != torch.bfloat16:
            raise ConfigError(
                f"attention backend avx512 computes in bfloat16, not {str(q.dtype).removeprefix('torch.')}; "
                "use --dtype bfloat16 or --attention-backend torch"
            )
        plan: Plan = batch.plan
        call = plan.call
        q, k = dense(q), dense(k)
        v = k if self.shape.values_in_keys else dense(v)
        out = torch.empty((q.shape[0], q.shape[1], call.value_dim), dtype=q.dtype)
        call.q, call.k, call.v, call.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        call.q_stride, call.k_stride, call.v_stride = q.stride(0), k.stride(0), v.stride(0)
        if batch.kv is not None:
            pool_k, pool_v = batch.kv.k[layer.index], batch.kv.v[layer.index]
            call.pool_k, call.pool_v = pool_k.data_ptr(), pool_v.data_ptr()
            call.pool_k_stride, call.pool_v_stride, call.pool_v_head = (
                pool_k.stride(0),
                pool_v.stride(0),
                pool_v.stride(1),
            )
        call.causal, call.window = layer.causal, layer.window or 0
        call.scale, call.softcap = layer.scale, layer.softcap or 0.0
        self._library.attend(plan.address)
        return out
