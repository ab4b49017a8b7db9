"""The Triton attention backend."""

from __future__ import annotations

import logging
from typing import Any

import torch
import triton
from torch import Tensor

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    ConfigError,
    ForwardBatch,
    FusedStoreCapable,
    GraphCapable,
    LSECapable,
    pinned,
    send,
)
from sglang_plug_backends.triton.kernels.decode import decode_kernel, merge_kernel
from sglang_plug_backends.triton.kernels.prefill import prefill_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import MIN_FOR_E4M3, launch_options, reads
from .plan import (
    DecodePlan,
    Plan,
    PrefillPlan,
    columns_of,
    decode_columns,
    decode_rows,
    pack,
    prefill_plan,
    tile,
    tiles,
)
from .settings import TritonSettings

INTERPRETED = not isinstance(decode_kernel, triton.JITFunction)
"""True if kernels are interpreted; Triton decides at definition, by ``TRITON_INTERPRET`` (see ``interpreter``)."""
logger = logging.getLogger(__name__)

SHORTEST_PART = 256
"""Minimum tokens of context for a separate program."""
MAX_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 2
WIDE_VALUES, MAX_MEMBERS = 256, 16
"""Width of values above which a decoding program serves at most this many query heads, to fit into registers."""
STAGES = 2


class TritonAttention(AttentionBackend, GraphCapable, FusedStoreCapable, LSECapable):
    """Split-KV decoding and paged prefill; rows of both kinds may come in one batch.

    Raises ``ConfigError`` on a device that Triton's compiler or interpreter does not serve.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        super().__init__(shape, device, settings)
        if device.type != "cuda" and not INTERPRETED:
            raise ConfigError(
                f"attention backend 'triton' cannot run on {device.type!r}: choose another backend, or set "
                "TRITON_INTERPRET=1 before the start to interpret its kernels, which is slow and meant for tests"
            )
        if INTERPRETED:
            logger.warning("Triton's kernels are interpreted on the CPU: good for a try, but very slow")
        if shape.heads % shape.kv_heads:
            raise ConfigError(
                "attention backend 'triton' needs the number of query heads to be a multiple of the number of "
                f"key-value heads, got {shape.heads} and {shape.kv_heads}"
            )
        if shape.kv_dtype is not None and not reads(shape.kv_dtype, device):
            raise ConfigError(
                "attention backend 'triton' reads keys and values in fp8_e4m3 only on GPUs of compute capability "
                f"{'.'.join(map(str, MIN_FOR_E4M3))} or more; use --kv-cache-dtype fp8_e5m2 or bfloat16"
            )
        self.value_dim = shape.value_dim or shape.dim
        self._wide = self.value_dim > WIDE_VALUES
        group = shape.heads // shape.kv_heads
        self._group_block = min(tile(group), MAX_MEMBERS) if self._wide else tile(group)
        self._group_blocks = -(-group // self._group_block)
        chosen = settings or TritonSettings()
        self._requested_splits = chosen.splits
        self._launch = {"num_stages": STAGES, **launch_options(device, chosen.overlap_launches)}
        self._processors = 0 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count

    def plan(self, batch: ForwardBatch) -> None:
        rows = decode_rows(batch)
        longest = max((batch.kv_lens[row] for row in rows), default=0)
        decode = self._decode_plan(batch, rows, longest) if rows else None
        others = sorted(set(range(len(batch.query_lens))) - set(rows))
        prefill = prefill_plan(batch, others, self._largest_query_block(batch), self.device) if others else None
        batch.plan = Plan(decode=decode, prefill=prefill)

    def static_plan(self, batch: ForwardBatch) -> None:
        """Plan one new token of each sequence, with enough splits for contexts as wide as the tables."""
        rows = decode_rows(batch)
        if len(rows) != len(batch.query_lens):
            raise ValueError(f"a static plan needs one new token of each sequence, got {batch.query_lens}")
        batch.plan = Plan(decode=self._decode_plan(batch, rows, batch.tables.shape[1]), prefill=None)

    def refresh(self, batch: ForwardBatch) -> None:
        decode: DecodePlan = batch.plan.decode
        columns = decode_columns(batch, decode_rows(batch))
        decode.index.copy_(pinned(pack(columns), self.device), non_blocking=True)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
        return self.run_after_store(layer, q, k, v, batch)

    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        return self._attend(layer, q, k, v, batch, None)

    def run_with_lse(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
        weighs = torch.empty(len(q), self.shape.heads, dtype=torch.float32, device=q.device)
        return self._attend(layer, q, k, v, batch, weighs), weighs

    def _attend(
        self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch, weighs: Tensor | None
    ) -> Tensor:
        """Attend, and store each query's log-sum-exp if a buffer is given."""
        plan: Plan = batch.plan
        keys, values = k, v
        if batch.kv is not None:
            keys, values = batch.kv.k[layer.index], batch.kv.v[layer.index]
        q, keys, values = _unit_stride(q), _unit_stride(keys), _unit_stride(values)
        out = q.new_empty(len(q), self.shape.heads, self.value_dim)
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
            if plan.decode is not None:
                self._decode(plan.decode, layer, q, keys, values, out, batch, weighs)
            if plan.prefill is not None:
                self._prefill(plan.prefill, layer, q, keys, values, out, batch, weighs)
        return out

    def _decode_plan(self, batch: ForwardBatch, rows: list[int], longest: int) -> DecodePlan:
        columns = decode_columns(batch, rows)
        index = send(pack(columns), self.device)
        splits = self._splits(len(rows), longest)
        parts = sums = None
        if splits > 1:
            size = (len(rows), self.shape.heads, splits)
            parts = torch.empty(*size, self.value_dim, dtype=torch.float32, device=self.device)
            sums = torch.empty(size, dtype=torch.float32, device=self.device)
        tokens, sequences, lengths = columns_of(index, columns)
        return DecodePlan(
            index=index,
            tokens=tokens,
            sequences=sequences,
            lengths=lengths,
            splits=splits,
            parts=parts,
            sums=sums,
        )

    def _splits(self, rows: int, longest: int) -> int:
        """Return the splits of each context, a power of two: enough programs for the device, none too short."""
        if self._requested_splits:
            return self._requested_splits
        programs = rows * self.shape.kv_heads * self._group_blocks
        target_programs = PROGRAMS_PER_PROCESSOR * self._processors // programs
        splits = max(1, min(target_programs, longest // SHORTEST_PART, MAX_SPLITS))
        return 1 << (splits.bit_length() - 1)

    def _largest_query_block(self, batch: ForwardBatch) -> int:
        narrow = self.shape.dim <= 128 and self.value_dim <= 128
        halves = batch.kv is not None and all(keys.dtype.itemsize <= 2 for keys in batch.kv.k[:1])
        if self._wide:
            return 32 if halves else 16
        return (128 if narrow else 64) if halves else (64 if narrow else 32)

    def _decode(
        self,
        plan: DecodePlan,
        layer: Attention,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        batch: ForwardBatch,
        weighs: Tensor | None,
    ) -> None:
        rows, kv_heads = len(plan.tokens), self.shape.kv_heads
        group = self.shape.heads // kv_heads
        split = plan.parts is not None
        options = self._options(layer, q, group)
        decode_kernel[rows, kv_heads * self._group_blocks, plan.splits](
            q,
            keys,
            values,
            plan.parts if split else out,
            plan.sums if split else plan.lengths,
            batch.tables,
            plan.tokens,
            plan.sequences,
            plan.lengths,
            plan.lengths if weighs is None else weighs,
            *_scales(layer, batch),
            plan.splits,
            batch.tables.stride(0),
            *_strides(q, keys, values, out),
            SPLIT=split,
            WEIGHED=weighs is not None,
            GROUP_BLOCK=self._group_block,
            GROUP_BLOCKS=self._group_blocks,
            **options,
            **self._launch,
            num_warps=4,
        )
        if split:
            merge_kernel[rows, self.shape.heads](
                plan.parts,
                plan.sums,
                out,
                plan.tokens,
                plan.tokens if weighs is None else weighs,
                out.stride(0),
                out.stride(1),
                WEIGHED=weighs is not None,
                SPLITS=plan.splits,
                VALUE_DIM=self.value_dim,
                VALUE_BLOCK=options["VALUE_BLOCK"],
                **self._launch,
            )

    def _prefill(
        self,
        plan: PrefillPlan,
        layer: Attention,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        batch: ForwardBatch,
        weighs: Tensor | None,
    ) -> None:
        prefill_kernel[len(plan.block_starts), self.shape.heads](
            q,
            keys,
            values,
            out,
            batch.tables,
            plan.block_sequences,
            plan.block_starts,
            plan.query_starts,
            plan.query_lengths,
            plan.lengths,
            plan.lengths if weighs is None else weighs,
            *_scales(layer, batch),
            batch.tables.stride(0),
            *_strides(q, keys, values, out),
            PAGED=batch.kv is not None,
            WEIGHED=weighs is not None,
            CAUSAL=layer.causal,
            QUERY_BLOCK=plan.query_block,
            **self._options(layer, q, self.shape.heads // self.shape.kv_heads),
            **self._launch,
            num_warps=8 if self._wide or plan.query_block == 128 or q.dtype == torch.float32 else 4,
        )

    def _options(self, layer: Attention, q: Tensor, group: int) -> dict[str, Any]:
        """Return the compile-time arguments that both kernels have."""
        dim_block, rest_block = tiles(self.shape.dim)
        value_block = tile(self.value_dim)
        widest = max(dim_block, value_block)
        return {
            "GROUP": group,
            "DIM": self.shape.dim,
            "DIM_BLOCK": dim_block,
            "REST_BLOCK": rest_block,
            "VALUES_IN_KEYS": self.shape.values_in_keys and self.value_dim == dim_block,
            "VALUE_DIM": self.value_dim,
            "VALUE_BLOCK": value_block,
            "BLOCK": 16 if q.dtype == torch.float32 or widest > 256 else 32 if widest > 128 else 64,
            "WINDOW": layer.window or 0,
            "SOFTCAP": layer.softcap or 0.0,
            "PRECISION": _precision(q.dtype),
        }


def _scales(layer: Attention, batch: ForwardBatch) -> tuple[float, float]:
    """Return the scales of query-key products and of values for the pool's dtype."""
    if batch.kv is None:
        return float(layer.scale), 1.0
    return layer.scale * batch.kv.k_scale[layer.index], batch.kv.v_scale[layer.index]


def _precision(dtype: torch.dtype) -> str:
    """Return ``"ieee"`` for float32 products, which the interpreter needs because it reads bfloat16 as an integer."""
    return "ieee" if dtype == torch.float32 or (INTERPRETED and dtype == torch.bfloat16) else "tf32"


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]
