"""The FlashInfer attention backend.

FlashInfer plans a step once for each kind of layer (window, cap, scale), and its wrappers hold the plan. A step
therefore borrows wrappers until its batch is released. The kinds are discovered in the first step: a layer of a new
kind plans for itself, and from then on ``plan`` does it before the model runs.
"""

from __future__ import annotations

import os
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import flashinfer
import torch
from torch import Tensor

from sglang_plug import (
    Attention,
    AttentionBackend,
    AttentionShape,
    ConfigError,
    ForwardBatch,
    FusedStoreCapable,
    GraphCapable,
    KVPool,
)

from .plan import Part, Role, make_part, parts_of
from .settings import FlashInferSettings
from .toolkit import complete_toolkit

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)
LAYOUT = "NHD"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """The layer properties that a plan depends on besides the batch."""

    causal: bool
    window_left: int
    """Number of earlier tokens that a query attends to; -1: all."""
    softcap: float
    scale: float
    dtype: torch.dtype

    @classmethod
    def of(cls, layer: Attention, dtype: torch.dtype) -> Kind:
        """Return the kind of ``layer`` for queries of ``dtype``."""
        window_left = -1 if layer.window is None else layer.window - 1
        return cls(layer.causal, window_left, layer.softcap or 0.0, layer.scale, dtype)


class BorrowedWrapper:
    """A borrowed wrapper and the event after which its staging memory may be overwritten."""

    def __init__(self, wrapper: Any, role: Role) -> None:
        self.wrapper, self.role = wrapper, role
        self._copied: torch.cuda.Event | None = None

    def before_plan(self) -> None:
        """Wait until the last plan has been copied from the host's memory; usually it has."""
        if self._copied is not None:
            self._copied.synchronize()

    def after_plan(self, device: torch.device) -> None:
        """Record an event after the plan's copy to the device."""
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()


@dataclass(frozen=True, slots=True)
class StaticBuffers:
    """The index buffers that a captured kernel reads, at fixed addresses."""

    indptr: Tensor
    """``[rows + 1]`` int32, the start of each row's pages in ``pages``, and their end."""
    pages: Tensor
    """``[max_pages]`` int32, the pages of all rows."""
    last_page: Tensor
    """``[rows]`` int32, the number of tokens in each row's last page."""


@dataclass(eq=False)
class Step:
    """The plan of one batch."""

    parts: list[Part]
    lent: dict[tuple[Kind, Role], BorrowedWrapper] = field(default_factory=dict)
    static: StaticBuffers | None = None


class FlashInferAttention(AttentionBackend, GraphCapable, FusedStoreCapable):
    """Paged decoding (tensor cores for grouped heads), paged prefill, and ragged prefill where nothing is cached.

    Raises ``ConfigError`` for a shape that FlashInfer has no kernels for, and for float32 when the first step is run.
    """

    def __init__(self, shape: AttentionShape, device: torch.device, settings: Any = None) -> None:
        super().__init__(shape, device, settings)
        if shape.dim not in HEAD_DIMS or (shape.value_dim or shape.dim) != shape.dim:
            raise ConfigError(
                f"attention backend 'flashinfer' serves keys and values of dimension {', '.join(map(str, HEAD_DIMS))}, "
                f"both the same, not {shape.dim} and {shape.value_dim or shape.dim}; use --attention-backend triton"
            )
        if shape.heads % shape.kv_heads:
            raise ConfigError(
                "attention backend 'flashinfer' needs the number of query heads to be a multiple of the number of "
                f"key-value heads, got {shape.heads} and {shape.kv_heads}"
            )
        self._options = settings or FlashInferSettings()
        self._paged_backend = self._options.prefill
        if shape.kv_dtype is not None:
            if self._paged_backend == "fa3":
                raise ConfigError(
                    "attention backend 'flashinfer' reads a KV pool of another dtype than the model's with its kernels "
                    "'fa2' only; leave --set flashinfer.prefill at auto, or --kv-cache-dtype"
                )
            self._paged_backend = "fa2"
        self._tensor_cores = shape.heads // shape.kv_heads >= self._options.tensor_cores_from
        self._workspace = torch.zeros(self._options.workspace_mib * MIB, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            os.environ.update(complete_toolkit())
        self._idle: dict[Role, deque[BorrowedWrapper]] = defaultdict(deque)
        self._kinds: dict[Kind, None] = {}
        self._static_pages = torch.zeros(0, dtype=torch.int32, device=device)

    def plan(self, batch: ForwardBatch) -> None:
        # a pool of another dtype is always read, so that results are independent of when a token was computed
        step = batch.plan = Step(parts_of(batch, self.device, ragged=self.shape.kv_dtype is None))
        weakref.finalize(step, _return, self._idle, step.lent).atexit = False
        for part in step.parts:
            for kind in self._kinds:
                self._planned(step, part, kind, batch.page_size)

    def static_plan(self, batch: ForwardBatch) -> None:
        """Plan one new token of each sequence in wrappers that only this plan will ever use."""
        rows = len(batch.query_lens)
        if batch.kv is None or batch.query_lens != [1] * rows:
            raise ValueError(f"a static plan needs a pool and one new token of each sequence, got {batch.query_lens}")
        max_pages = rows * -(-batch.tables.shape[1] // batch.page_size)
        if len(self._static_pages) < max_pages:  # graphs run one at a time: they share the largest
            self._static_pages = torch.zeros(max_pages, dtype=torch.int32, device=self.device)
        buffers = StaticBuffers(self._index(rows + 1), self._static_pages, self._index(rows))
        step = batch.plan = Step([], static=buffers)
        self.refresh(batch)
        for kind in self._kinds:
            self._planned(step, step.parts[0], kind, batch.page_size)

    def refresh(self, batch: ForwardBatch) -> None:
        step: Step = batch.plan
        assert step.static is not None
        part = make_part("decode", batch, range(len(batch.query_lens)), self.device)
        assert part.pages is not None
        step.static.pages[: len(part.pages)].copy_(part.pages)
        step.parts = [part]
        for (kind, _), lent in step.lent.items():
            self._plan_wrapper(lent, part, kind, batch.page_size, step.static)

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        if batch.kv is not None:
            batch.kv.store(layer.index, k, v, batch.slots)
        return self.run_after_store(layer, q, k, v, batch)

    def run_after_store(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        step: Step = batch.plan
        kind = Kind.of(layer, q.dtype)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part in step.parts:
            wrapper = self._planned(step, part, kind, batch.page_size)
            keys: tuple[Any, ...]
            scales: dict[str, float] = {}
            if part.role == "ragged":
                keys = k[part.tokens], v[part.tokens]
            else:
                assert batch.kv is not None
                keys = ((self._paged(batch.kv.k[layer.index], batch), self._paged(batch.kv.v[layer.index], batch)),)
                scales = _scales(batch.kv, layer.index)
            if isinstance(part.tokens, slice):
                wrapper.run(q[part.tokens], *keys, out=out[part.tokens], **scales)
            else:
                out.index_copy_(0, part.tokens, wrapper.run(q[part.tokens], *keys, **scales))
        return out

    @staticmethod
    def _paged(pool: Tensor, batch: ForwardBatch) -> Tensor:
        """View ``[slots, kv_heads, dim]`` as ``[pages, page_size, kv_heads, dim]``."""
        return pool.view(-1, batch.page_size, *pool.shape[1:])

    def _index(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int32, device=self.device)

    def _planned(self, step: Step, part: Part, kind: Kind, page_size: int) -> Any:
        """Return the wrapper planned for ``part`` and ``kind``, planning one if there is none."""
        lent = step.lent.get((kind, part.role))
        if lent is None:
            self._learn(kind)
            if step.static is not None:
                lent = BorrowedWrapper(self._decode_wrapper(step.static), part.role)
            else:
                idle = self._idle[part.role]
                lent = idle.popleft() if idle else BorrowedWrapper(self._wrapper(part.role), part.role)
            step.lent[kind, part.role] = lent
            self._plan_wrapper(lent, part, kind, page_size, step.static)
        return lent.wrapper

    def _learn(self, kind: Kind) -> None:
        if kind in self._kinds:
            return
        if kind.dtype not in DTYPES:
            raise ConfigError(
                f"attention backend 'flashinfer' computes in float16 and bfloat16, not in {kind.dtype}; "
                "use --dtype bfloat16 or --attention-backend triton"
            )
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a layer of a new kind appeared while a CUDA graph was captured; run the model once before"
            )
        self._kinds[kind] = None

    def _wrapper(self, role: Role) -> Any:
        if role == "decode":
            return self._decode_wrapper(None)
        if role == "paged":
            return flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, LAYOUT, backend=self._paged_backend)
        return flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self._workspace, LAYOUT, backend=self._options.prefill)

    def _decode_wrapper(self, static: StaticBuffers | None) -> Any:
        if static is None:
            return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, LAYOUT, use_tensor_cores=self._tensor_cores
            )
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=self._tensor_cores,
            paged_kv_indptr_buffer=static.indptr,
            paged_kv_indices_buffer=static.pages,
            paged_kv_last_page_len_buffer=static.last_page,
        )

    def _plan_wrapper(
        self, lent: BorrowedWrapper, part: Part, kind: Kind, page_size: int, static: StaticBuffers | None = None
    ) -> None:
        shape = self.shape
        heads = (shape.heads, shape.kv_heads, shape.dim)
        options: dict[str, Any] = {
            "window_left": kind.window_left,
            "logits_soft_cap": kind.softcap,
            "sm_scale": kind.scale,
            "q_data_type": kind.dtype,
            "kv_data_type": kind.dtype if lent.role == "ragged" else shape.kv_dtype or kind.dtype,
        }
        lent.before_plan()
        if lent.role == "ragged":
            lent.wrapper.plan(part.query_indptr, part.query_indptr, *heads, causal=kind.causal, **options)
        else:
            assert part.pages is not None
            pages = part.pages if static is None else static.pages[: len(part.pages)]
            index = (part.page_indptr, pages, part.last_page)
            if lent.role == "decode":
                lent.wrapper.plan(*index, *heads, page_size, **options)
            else:
                lent.wrapper.plan(part.query_indptr, *index, *heads, page_size, causal=kind.causal, **options)
        lent.after_plan(self.device)


def _scales(kv: KVPool, layer: int) -> dict[str, float]:
    """Return FlashInfer's arguments for the scales of the KV pool; empty if they are one."""
    scales = {"k_scale": kv.k_scale[layer], "v_scale": kv.v_scale[layer]}
    return {name: scale for name, scale in scales.items() if scale != 1.0}


def _return(idle: dict[Role, deque[BorrowedWrapper]], lent: dict[tuple[Kind, Role], BorrowedWrapper]) -> None:
    for wrapper in lent.values():
        idle[wrapper.role].append(wrapper)
