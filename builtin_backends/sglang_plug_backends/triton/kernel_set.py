"""The Triton kernel set: each function implements its definition in ``sglang_plug.contracts.model.kernels``.

If a kernel cannot run (a CPU without the interpreter, an unusual layout, empty input) the definition is used.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sglang_plug import Kernels, KVPool
from sglang_plug.contracts.model.kernels import rope_store as rope_store_definition
from sglang_plug_backends.triton.kernels.rope import rope_store_kernel
from sglang_plug_backends.triton.kernels.rowwise import (
    add_rms_norm_kernel,
    rms_norm_kernel,
    rope_kernel,
    silu_mul_kernel,
)

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import launch_options, power_of_two, runs, writes
from .lora import add_low_rank
from .matrix_vector import RowProducts
from .moe import Tiles, biased_moe, multiply, sort_pairs, tiles_for
from .quantized import pack_quantized
from .recurrent import causal_conv, gated_delta_rule, linear_attention, selective_scan
from .sampling import mask_logits, sample_tokens
from .settings import TritonSettings

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
WIDEST_ROW = 1 << 16
"""Maximum elements that one program holds at once."""
PAIR_BLOCK = 1024
HEAD_BLOCK = 16


def build(settings: TritonSettings | None = None) -> Kernels:
    """Build the kernel set."""
    overlap = (settings or TritonSettings()).overlap_launches
    rows = RowProducts(partial(silu_mul, overlap=overlap), overlap=overlap)
    return Kernels(
        name="triton",
        pack_linear=rows.pack_linear,
        pack_gated=rows.pack_gated,
        pack_quantized=partial(pack_quantized, overlap=overlap),
        rms_norm=partial(rms_norm, overlap=overlap),
        add_rms_norm=partial(add_rms_norm, overlap=overlap),
        silu_mul=partial(silu_mul, overlap=overlap),
        apply_rope=partial(apply_rope, overlap=overlap),
        rope_store=partial(rope_store, overlap=overlap),
        moe=partial(moe, overlap=overlap),
        biased_moe=partial(biased_moe, overlap=overlap),
        causal_conv=partial(causal_conv, overlap=overlap),
        linear_attention=partial(linear_attention, overlap=overlap),
        gated_delta_rule=partial(gated_delta_rule, overlap=overlap),
        selective_scan=partial(selective_scan, overlap=overlap),
        add_low_rank=partial(add_low_rank, overlap=overlap),
        mask_logits=partial(mask_logits, overlap=overlap),
        sample_tokens=partial(sample_tokens, overlap=overlap),
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, overlap: bool = False) -> Tensor:
    """Compute the definition; ``x`` may be a 3-D view, such as the heads of one projection."""
    size = x.shape[-1]
    if not runs(x, weight) or x.dim() not in (2, 3) or x.stride(-1) != 1 or size > WIDEST_ROW:
        return DEFINITIONS.rms_norm(x, weight, eps)
    inner = x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        rms_norm_kernel[(x.numel() // size,)](
            x,
            weight,
            out,
            inner,
            x.stride(0),
            x.stride(1) if x.dim() == 3 else 0,
            eps,
            SIZE=size,
            BLOCK=power_of_two(size),
            num_warps=_warps(size),
            **launch_options(x.device, overlap),
        )
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, overlap: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the definition; the sum is written to ``residual``, the norm to ``x``."""
    size = x.shape[-1]
    plain = x.is_contiguous() and residual.is_contiguous() and x.shape == residual.shape
    same = x.dtype == residual.dtype and weight.dtype in (x.dtype, torch.float32)
    if not runs(x, residual, weight) or not plain or not same or size > WIDEST_ROW:
        return DEFINITIONS.add_rms_norm(x, residual, weight, eps)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        add_rms_norm_kernel[(x.numel() // size,)](
            x,
            residual,
            weight,
            eps,
            SIZE=size,
            BLOCK=power_of_two(size),
            num_warps=_warps(size),
            **launch_options(x.device, overlap),
        )
    return x, residual


def silu_mul(gate_up: Tensor, *, overlap: bool = False) -> Tensor:
    """Compute the definition with one rounding instead of two."""
    if not runs(gate_up) or not gate_up.is_contiguous():
        return DEFINITIONS.silu_mul(gate_up)
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    with torch.cuda.device_of(gate_up):  # type: ignore[no-untyped-call]
        silu_mul_kernel[(out.numel() // width, -(-width // PAIR_BLOCK))](
            gate_up, out, width, BLOCK=PAIR_BLOCK, **launch_options(gate_up.device, overlap)
        )
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, *, overlap: bool = False) -> Tensor:
    """Compute the definition in one pass; ``x`` may be a view of a wider projection."""
    width, dim = cos.shape[-1], x.shape[-1]
    plain = x.dim() == 3 and x.stride(-1) == cos.stride(-1) == sin.stride(-1) == 1 and cos.stride(0) == sin.stride(0)
    if not runs(x, cos, sin) or not plain or cos.dtype != sin.dtype:
        return DEFINITIONS.apply_rope(x, cos, sin)
    tokens, heads, _ = x.shape
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, cos.dtype), device=x.device)
    head_block = min(HEAD_BLOCK, power_of_two(heads))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        rope_kernel[(tokens, -(-heads // head_block))](
            x,
            cos,
            sin,
            out,
            heads,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            HALF=width // 2,
            HALF_BLOCK=power_of_two(width // 2),
            REST=dim - width,
            REST_BLOCK=power_of_two(dim - width),
            HEAD_BLOCK=head_block,
            **launch_options(x.device, overlap),
        )
    return out


def rope_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv: KVPool,
    layer: int,
    slots: Tensor,
    *,
    overlap: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the definition in one pass; ``q``, ``k`` and ``v`` may be views of a wider projection."""
    if not runs(q, k, v, cos, sin) or not _storable(q, k, v, cos, sin, kv, layer):
        return rope_store_definition(q, k, v, cos, sin, kv, layer, slots)
    pool_k, pool_v = kv.k[layer], kv.v[layer]
    width, (tokens, heads, dim), kv_heads, value_dim = cos.shape[-1], q.shape, k.shape[1], v.shape[2]
    q_out, k_out = q.new_empty(q.shape), k.new_empty(k.shape)
    head_block = min(HEAD_BLOCK, power_of_two(max(heads, kv_heads)))
    query_blocks = -(-heads // head_block)
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        rope_store_kernel[(tokens, query_blocks - (-kv_heads // head_block))](
            q,
            k,
            v,
            cos,
            sin,
            slots,
            q_out,
            k_out,
            pool_k,
            pool_v,
            1 / kv.k_scale[layer],
            1 / kv.v_scale[layer],
            heads,
            kv_heads,
            cos.stride(0),
            *(stride for tensor in (q, k, v, pool_k, pool_v) for stride in tensor.stride()[:2]),
            HALF=width // 2,
            HALF_BLOCK=power_of_two(width // 2),
            REST=dim - width,
            REST_BLOCK=power_of_two(dim - width),
            VALUE_DIM=value_dim,
            VALUE_BLOCK=power_of_two(value_dim),
            HEAD_BLOCK=head_block,
            QUERY_BLOCKS=query_blocks,
            MAX_VALUE=0.0 if pool_k.dtype == k.dtype else torch.finfo(pool_k.dtype).max,
            **launch_options(q.device, overlap),
        )
    return q_out, k_out


def moe(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, weights: Tensor, *, overlap: bool = False) -> Tensor:
    """Compute the definition in two grouped products over tokens sorted by expert, without synchronisation."""
    if (
        not runs(x, gate_up, down, experts)
        or x.stride(-1) != 1
        or not (gate_up.is_contiguous() and down.is_contiguous())
    ):
        return DEFINITIONS.moe(x, gate_up, down, experts, weights)
    tiles = tiles_for(experts.numel(), len(down), x.dtype)
    return moe_tiled(x, gate_up, down, experts, weights, tiles, overlap=overlap)


def moe_tiled(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    experts: Tensor,
    weights: Tensor,
    tiles: Tiles,
    *,
    overlap: bool = False,
) -> Tensor:
    """Run ``moe`` in programs of the size of ``tiles``."""
    tokens, chosen = experts.shape
    count, hidden, width = down.shape
    blocks = sort_pairs(experts, count, tiles.rows)
    pair = x.new_empty(tokens * chosen, 2 * width)
    pair = multiply(x, gate_up, blocks, tiles, chosen=chosen, factors=None, out=pair, overlap=overlap)
    between = silu_mul(pair, overlap=overlap)
    parts = torch.empty(tokens * chosen, hidden, dtype=torch.float32, device=x.device)
    factors = weights.flatten().float()
    multiply(between, down, blocks, tiles, chosen=chosen, factors=factors, out=parts, overlap=overlap)
    return parts.view(tokens, chosen, hidden).sum(1).to(x.dtype)


def _storable(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: KVPool, layer: int) -> bool:
    """Return True for a layout that ``rope_store_kernel`` serves and a pool that it can write to."""
    rows = (q, k, v, kv.k[layer], kv.v[layer])
    dense = all(row.dim() == 3 and row.stride(-1) == 1 for row in rows) and cos.stride(-1) == sin.stride(-1) == 1
    alike = q.dtype == k.dtype == v.dtype and cos.dtype == sin.dtype and cos.stride(0) == sin.stride(0)
    return dense and alike and not kv.values_in_keys and writes(kv.k[layer].dtype, q.device)


def _warps(size: int) -> int:
    return 1 if size <= 256 else 4 if size <= 2048 else 8 if size <= 8192 else 16
