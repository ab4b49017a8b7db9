"""Stands in for the ``flashinfer`` module: the wrappers' signatures, their checks, and their results by plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def host_index(x: Tensor) -> None:
    assert x.device.type == "cpu" and x.dtype == torch.int32 and x.is_contiguous()


@dataclass
class Options:
    """Arguments of ``plan`` besides the index arrays, with the library's names and defaults."""

    heads: int
    kv_heads: int
    dim: int
    page_size: int
    _: KW_ONLY
    causal: bool = False
    window_left: int = -1
    logits_soft_cap: float | None = None
    sm_scale: float
    q_data_type: torch.dtype = torch.float16
    kv_data_type: torch.dtype | None = None


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, k_scale: float | None = None, v_scale: float | None = None
) -> Tensor:
    """Attend with the last ``len(q)`` tokens of a context in float32."""
    group = options.heads // options.kv_heads
    assert k.dtype == v.dtype == options.kv_data_type
    k, v = (part.float().repeat_interleave(group, dim=1) for part in (k, v))
    k, v = k * (k_scale or 1.0), v * (v_scale or 1.0)
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * options.sm_scale
    if softcap := options.logits_soft_cap:
        scores = softcap * torch.tanh(scores / softcap)
    positions, here = torch.arange(len(k)), torch.arange(len(k) - len(q), len(k))[:, None]
    hidden = (positions > here) if options.causal else torch.zeros(len(q), len(k), dtype=torch.bool)
    if options.window_left >= 0:
        hidden = hidden | (positions < here - options.window_left)
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).to(q.dtype)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def gathered(pool: Tensor, pages: Tensor, last: int) -> Tensor:
    """Gather ``[length, kv_heads, dim]`` of one sequence."""
    size = pool.shape[1]
    return pool[pages.long()].flatten(0, 1)[: (len(pages) - 1) * size + last]


def attend_pages(
    q: Tensor,
    queries: list[int],
    pages: Sequence[Tensor],
    pools: tuple[Tensor, Tensor],
    options: Options,
    **scales: Any,
) -> Tensor:
    """Attend with each sequence's new tokens, which begin at ``queries``, over its pages.

    The pages are ``indptr``, ``indices`` and ``last``.
    """
    indptr, indices, last = pages
    rows = []
    for row, end in enumerate(last.tolist()):
        own = [gathered(pool, indices[indptr[row] : indptr[row + 1]], end) for pool in pools]
        rows.append(attend(q[queries[row] : queries[row + 1]], own[0], own[1], options, **scales))
    return torch.cat(rows)


class Wrapper:
    """Common part of the wrappers."""

    instances: list[Wrapper] = []

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8 and not workspace.any() and kv_layout == "NHD"
        self.options: Options | None = None
        self.plans = 0
        Wrapper.instances.append(self)

    def planned(self, options: Options) -> None:
        self.options = options
        self.plans += 1

    def checked(self, q: Tensor, out: Tensor | None) -> Options:
        options = self.options
        assert options is not None and q.dtype == options.q_data_type and q.stride(-1) == 1
        assert q.shape[1:] == (options.heads, options.dim)
        assert out is None or (out.shape == q.shape and out.dtype == q.dtype)
        return options

    def finished(self, result: Tensor, out: Tensor | None) -> Tensor:
        return result if out is None else out.copy_(result)


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.graph, self.tensor_cores = use_cuda_graph, use_tensor_cores
        self.index: Any = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        if use_cuda_graph:
            assert len(self.index[0]) == len(self.index[2]) + 1

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        *shape: int,
        **options: Any,
    ) -> None:
        planned = Options(*shape, causal=False, **options)
        host_index(indptr), host_index(last_page_len)
        assert indices.dtype == torch.int32 and len(indices) == indptr[-1]
        assert planned.kv_data_type in (planned.q_data_type, *FLOAT8)
        assert self.tensor_cores or planned.heads // planned.kv_heads in (1, 2, 3, 4, 8), "no such kernel"
        if self.graph:
            assert len(last_page_len) == len(self.index[2]), "the batch size is fixed"
            assert len(indices) <= len(self.index[1])
            self.index[0].copy_(indptr)
            self.index[1][: len(indices)].copy_(indices)
            self.index[2].copy_(last_page_len)
        else:
            self.index = (indptr.clone(), indices, last_page_len.clone())
        self.planned(planned)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        options = self.checked(q, out)
        k, v = paged_kv_cache
        assert k.shape[1:] == (options.page_size, options.kv_heads, options.dim) and k.stride() == v.stride()
        assert len(q) == len(self.index[-1])
        queries = list(range(len(q) + 1))
        return self.finished(
            attend_pages(q, queries, self.index, (k, v), options, k_scale=k_scale, v_scale=v_scale), out
        )


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", *, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.backend = backend

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        *shape: int,
        **options: Any,
    ) -> None:
        planned = Options(*shape, **options)
        for item in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            host_index(item)
        assert paged_kv_indices.dtype == torch.int32 and len(paged_kv_indices) == paged_kv_indptr[-1]
        kind = planned.kv_data_type
        assert kind == planned.q_data_type or (kind in FLOAT8 and self.backend == "fa2")
        self.index = (qo_indptr.clone(), paged_kv_indptr.clone(), paged_kv_indices, paged_kv_last_page_len.clone())
        self.planned(planned)

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        options = self.checked(q, out)
        queries, *pages = self.index
        k, v = paged_kv_cache
        assert k.shape[1:] == (options.page_size, options.kv_heads, options.dim) and len(q) == queries[-1]
        result = attend_pages(q, queries.tolist(), pages, (k, v), options, k_scale=k_scale, v_scale=v_scale)
        return self.finished(result, out)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", *, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.backend = backend

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        *shape: int,
        **options: Any,
    ) -> None:
        planned = Options(*shape, page_size=1, **options)
        host_index(qo_indptr), host_index(kv_indptr)
        assert planned.kv_data_type == planned.q_data_type
        self.index = (qo_indptr.clone(), kv_indptr.clone())
        self.planned(planned)

    def run(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None) -> Tensor:
        options = self.checked(q, out)
        queries, keys = (item.tolist() for item in self.index)
        assert len(q) == queries[-1] and len(k) == len(v) == keys[-1] and k.stride(-1) == v.stride(-1) == 1
        rows = [
            attend(q[queries[row] : queries[row + 1]], *(x[keys[row] : keys[row + 1]] for x in (k, v)), options)
            for row in range(len(queries) - 1)
        ]
        return self.finished(torch.cat(rows), out)


def module() -> ModuleType:
    """Build a module named ``flashinfer``."""
    flashinfer = ModuleType("flashinfer")
    Wrapper.instances.clear()
    for kind in (
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        BatchPrefillWithRaggedKVCacheWrapper,
    ):
        setattr(flashinfer, kind.__name__, kind)
    return flashinfer
