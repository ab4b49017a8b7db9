"""Stands in for the ``flashinfer`` module: the wrappers' signatures, their checks, and their results by plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def host_index(x: Tensor) -> None:
    assert x.device.type == "cpu" and x.dtype == torch.int32 and x.is_contiguous()


@dataclass
class Options:
    """What was planned besides the index arrays."""

    heads: int
    kv_heads: int
    dim: int
    page_size: int
    causal: bool
    window_left: int
    softcap: float
    scale: float
    dtype: torch.dtype
    kv_dtype: torch.dtype | None


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, k_scale: float | None = None, v_scale: float | None = None
) -> Tensor:
    """The last ``len(q)`` tokens of a context, in float32."""
    group = options.heads // options.kv_heads
    assert k.dtype == v.dtype == options.kv_dtype
    k, v = (part.float().repeat_interleave(group, dim=1) for part in (k, v))
    k, v = k * (k_scale or 1.0), v * (v_scale or 1.0)
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k) * options.scale
    if options.softcap > 0:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    places, here = torch.arange(len(k)), torch.arange(len(k) - len(q), len(k))[:, None]
    hidden = (places > here) if options.causal else torch.zeros(len(q), len(k), dtype=torch.bool)
    if options.window_left >= 0:
        hidden = hidden | (places < here - options.window_left)
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v).to(q.dtype)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def gathered(pool: Tensor, pages: Tensor, last: int) -> Tensor:
    """``[length, kv_heads, dim]`` of one sequence."""
    size = pool.shape[1]
    return pool[pages.long()].flatten(0, 1)[: (len(pages) - 1) * size + last]


class Wrapper:
    """What the wrappers have in common."""

    made: list[Wrapper] = []

    def __init__(self, workspace: Tensor, kv_layout: str) -> None:
        assert workspace.dtype == torch.uint8 and not workspace.any() and kv_layout == "NHD"
        self.options: Options | None = None
        self.plans = 0
        Wrapper.made.append(self)

    def checked(self, q: Tensor, out: Tensor | None) -> Options:
        options = self.options
        assert options is not None and q.dtype == options.dtype and q.stride(-1) == 1
        assert q.shape[1:] == (options.heads, options.dim)
        assert out is None or (out.shape == q.shape and out.dtype == q.dtype)
        return options

    def finished(self, found: Tensor, out: Tensor | None) -> Tensor:
        return found if out is None else out.copy_(found)


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
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        host_index(indptr), host_index(last_page_len)
        assert indices.dtype == torch.int32 and len(indices) == indptr[-1]
        assert kv_data_type in (q_data_type, *FLOAT8)
        assert self.tensor_cores or num_qo_heads // num_kv_heads in (1, 2, 3, 4, 8), "no such kernel"
        if self.graph:
            assert len(last_page_len) == len(self.index[2]), "the batch size is fixed"
            assert len(indices) <= len(self.index[1])
            self.index[0].copy_(indptr)
            self.index[1][: len(indices)].copy_(indices)
            self.index[2].copy_(last_page_len)
        else:
            self.index = (indptr.clone(), indices, last_page_len.clone())
        self.plans += 1
        assert sm_scale is not None
        self.options = Options(
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            False,
            window_left,
            logits_soft_cap or 0.0,
            sm_scale,
            q_data_type,
            kv_data_type,
        )

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
        indptr, indices, last = self.index
        k, v = paged_kv_cache
        assert k.shape[1:] == (options.page_size, options.kv_heads, options.dim) and k.stride() == v.stride()
        assert len(q) == len(last)
        rows = []
        for row, (start, end) in enumerate(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)):
            own = [gathered(pool, indices[start:end], int(last[row])) for pool in (k, v)]
            rows.append(attend(q[row : row + 1], own[0], own[1], options, k_scale, v_scale))
        return self.finished(torch.cat(rows), out)


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
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        for one in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            host_index(one)
        assert paged_kv_indices.dtype == torch.int32 and len(paged_kv_indices) == paged_kv_indptr[-1]
        assert kv_data_type == q_data_type or (kv_data_type in FLOAT8 and self.backend == "fa2")
        assert sm_scale is not None
        self.index = (qo_indptr.clone(), paged_kv_indptr.clone(), paged_kv_indices, paged_kv_last_page_len.clone())
        self.plans += 1
        self.options = Options(
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            page_size,
            causal,
            window_left,
            logits_soft_cap or 0.0,
            sm_scale,
            q_data_type,
            kv_data_type,
        )

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
        queries, indptr, indices, last = self.index
        k, v = paged_kv_cache
        assert k.shape[1:] == (options.page_size, options.kv_heads, options.dim) and len(q) == queries[-1]
        rows = []
        for row in range(len(last)):
            pages = indices[indptr[row] : indptr[row + 1]]
            own = [gathered(pool, pages, int(last[row])) for pool in (k, v)]
            rows.append(attend(q[queries[row] : queries[row + 1]], own[0], own[1], options, k_scale, v_scale))
        return self.finished(torch.cat(rows), out)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", *, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        self.backend = backend

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        *,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        host_index(qo_indptr), host_index(kv_indptr)
        assert kv_data_type == q_data_type and sm_scale is not None
        self.index = (qo_indptr.clone(), kv_indptr.clone())
        self.plans += 1
        self.options = Options(
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            1,
            causal,
            window_left,
            logits_soft_cap or 0.0,
            sm_scale,
            q_data_type,
            kv_data_type,
        )

    def run(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None) -> Tensor:
        options = self.checked(q, out)
        queries, keys = (one.tolist() for one in self.index)
        assert len(q) == queries[-1] and len(k) == len(v) == keys[-1] and k.stride(-1) == v.stride(-1) == 1
        rows = [
            attend(q[queries[row] : queries[row + 1]], *(x[keys[row] : keys[row + 1]] for x in (k, v)), options)
            for row in range(len(queries) - 1)
        ]
        return self.finished(torch.cat(rows), out)


def module() -> ModuleType:
    """A module named ``flashinfer``."""
    made = ModuleType("flashinfer")
    Wrapper.made.clear()
    for kind in (
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        BatchPrefillWithRaggedKVCacheWrapper,
    ):
        setattr(made, kind.__name__, kind)
    return made
