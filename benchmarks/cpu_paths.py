"""Gain of the CPU kernels and attention backends over plain torch.

Run as ``python -m benchmarks.cpu_paths``. Shapes are those of Qwen2.5-0.5B. The alternatives of a row alternate, and
each row has the best time of each, so that a noisy machine treats them alike.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch.nn import functional as F

from benchmarks.common.report import parser, ratio, table, write_json
from sglang_plug import Attention, AttentionBackend, AttentionShape, BuildEnv, ForwardBatch, Kernels
from sglang_plug.contracts.model import kernels as definitions
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug_backends.avx512 import kernels as compiled
from sglang_plug_backends.avx512.attention import CompiledAttention
from sglang_plug_backends.avx512.library import why_not
from sglang_plug_backends.cpu import kernels as packed
from sglang_plug_backends.torch_native.attention import TorchAttention

HEADS, KV_HEADS, DIM, HIDDEN, WIDTH = 14, 2, 64, 896, 4864
ROUNDS = 7
Alternatives = Mapping[str, Callable[[], object]]


def race(alternatives: Alternatives, repeats: int) -> dict[str, float]:
    """Return the best seconds of one call of each alternative."""
    best = dict.fromkeys(alternatives, float("inf"))
    for _ in range(ROUNDS):
        for name, call in alternatives.items():
            call()
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            best[name] = min(best[name], (time.perf_counter() - started) / repeats)
    return best


def rows() -> Iterator[tuple[str, Alternatives, int]]:
    """Yield name, alternatives, and calls per round."""
    sets = {"torch": definitions.TORCH, "cpu": packed.build()}
    backends: dict[str, type[AttentionBackend]] = {"cpu": TorchAttention}
    if not why_not():
        sets["avx512"], backends["avx512"] = compiled.build(), CompiledAttention
    for count in (1, 32, 2048):
        yield f"linear {HIDDEN} to {2 * WIDTH}, {count} rows", linears(sets, count), max(1, 200 // count)
    for count in (1, 32, 2048):
        yield f"gated {HIDDEN} to {WIDTH}, {count} rows", gated(sets, count), max(1, 200 // count)
    for count in (1, 32, 2048):
        x, weight = bfloat16(count, HIDDEN), bfloat16(HIDDEN)
        norms = {name: partial(kernels.rms_norm, x, weight, 1e-6) for name, kernels in sets.items()}
        yield f"RMSNorm, {count} rows", norms, max(3, 1000 // count)
    for count, length in ((128, 128), (512, 512), (32, 1056), (2048, 2048)):
        yield f"attention, {count} new of {length} tokens", attention(backends, [count], [length]), 2
    for size, length in ((1, 600), (8, 600), (32, 160), (64, 1100)):
        yield f"attention, {size} decodes of {length} tokens", attention(backends, [1] * size, [length] * size), 5


def linears(sets: Mapping[str, Kernels], count: int) -> Alternatives:
    """Return the alternatives for a large matrix."""
    x, weight = bfloat16(count, HIDDEN), bfloat16(2 * WIDTH, HIDDEN)
    return {name: partial(kernels.pack_linear(weight, None), x) for name, kernels in sets.items()}


def gated(sets: Mapping[str, Kernels], count: int) -> Alternatives:
    """Return the alternatives for a large matrix with a gate."""
    x, weight = bfloat16(count, HIDDEN), bfloat16(2 * WIDTH, HIDDEN)
    return {name: partial(_gated(kernels, weight), x) for name, kernels in sets.items()}


def _gated(kernels: Kernels, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    if kernels.pack_gated is not None:
        return kernels.pack_gated(weight, None)
    multiply = kernels.pack_linear(weight, None)
    return lambda x: kernels.silu_mul(multiply(x))


def attention(backends: Mapping[str, type[AttentionBackend]], new: list[int], lengths: list[int]) -> Alternatives:
    """Return the alternatives for one layer; "torch" reads contiguous keys and values, which no server has."""
    shape = AttentionShape(heads=HEADS, kv_heads=KV_HEADS, dim=DIM, layers=1)
    pool = KVPool.of(shape, slots=sum(lengths) + 1, dtype=torch.bfloat16, device=torch.device("cpu"))
    for part in (*pool.k, *pool.v):
        part.normal_()
    batch = _batch(pool, new, lengths)
    q, k, v = (bfloat16(sum(new), heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    results: dict[str, Callable[[], object]] = {"torch": _ready(q, new, lengths)}
    for name, backend in backends.items():
        attention = backend(shape, torch.device("cpu"))
        layer = Attention(BuildEnv(attention=attention), 0, scale=DIM**-0.5)
        mine = dataclasses.replace(batch)
        attention.plan(mine)
        results[name] = partial(layer, q, k, v, mine)
    return results


def _batch(pool: KVPool, new: list[int], lengths: list[int]) -> ForwardBatch:
    starts = [1 + sum(lengths[:row]) for row in range(len(lengths))]
    tables = torch.stack([torch.arange(start, start + max(lengths)) for start in starts])
    slots = [
        torch.arange(start + length - n, start + length) for start, length, n in zip(starts, lengths, new, strict=True)
    ]
    positions = [torch.arange(length - n, length) for length, n in zip(lengths, new, strict=True)]
    return ForwardBatch(
        input_ids=torch.zeros(sum(new), dtype=torch.int64),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
        tables=tables.clamp_(max=len(pool.k[0]) - 1),
        query_lens=new,
        kv_lens=lengths,
        kv=pool,
    )


def _ready(q: torch.Tensor, new: list[int], lengths: list[int]) -> Callable[[], object]:
    size, length, count = len(new), lengths[0], new[0]
    query = q.view(size, count, HEADS, DIM).transpose(1, 2)
    k, v = (bfloat16(size, KV_HEADS, length, DIM) for _ in range(2))
    mask = torch.arange(length) <= torch.arange(length - count, length)[:, None]
    whole = count == length

    def run() -> object:
        return F.scaled_dot_product_attention(
            query, k, v, attn_mask=None if whole or count == 1 else mask, is_causal=whole, enable_gqa=True
        )

    return run


def bfloat16(*shape: int) -> torch.Tensor:
    """Return random bfloat16 numbers."""
    return torch.randn(*shape).bfloat16()


@torch.inference_mode()
def main() -> None:
    """Race all rows and print the times and their ratios."""
    options = parser(__doc__).parse_args()
    results = {name: race(alternatives, repeats) for name, alternatives, repeats in rows()}
    columns = list(dict.fromkeys(name for times in results.values() for name in times))
    lines = [
        [
            name,
            *(times[column] * 1e6 for column in columns),
            *(ratio(times["torch"], times[column]) for column in columns[1:]),
        ]
        for name, times in results.items()
    ]
    header = [
        "what",
        *(f"{column} (µs)" for column in columns),
        *(f"{column}, times as fast" for column in columns[1:]),
    ]
    print(table(header, lines))
    write_json(options.json, {"seconds": results})


if __name__ == "__main__":
    main()
