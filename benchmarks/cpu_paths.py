"""What the CPU kernels and the torch attention gain over what they replace, alternative beside alternative.

Run as ``python -m benchmarks.cpu_paths``. Shapes are those of Qwen2.5-0.5B. The alternatives of a row take turns, and
each row has the best time of each, so that a noisy machine treats them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn import functional as F

from benchmarks.report import parser, ratio, table, write_json
from sglang_plug import kernels as definitions
from sglang_plug_backends.cpu import kernels
from sglang_plug_backends.torch_native.blocks import attend_in_blocks
from sglang_plug_backends.torch_native.wide import attend_wide

HEADS, KV_HEADS, DIM, HIDDEN, WIDTH = 14, 2, 64, 896, 4864
ROUNDS = 7
Alternatives = Mapping[str, Callable[[], object]]


def race(alternatives: Alternatives, repeats: int) -> dict[str, float]:
    """The best seconds of one call of each alternative."""
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
    """Name, the replaced way and ours, and how often each is called in a round."""
    for count in (1, 32, 2048):
        yield f"linear {HIDDEN} to {2 * WIDTH}, {count} rows", linears(count), max(1, 200 // count)
    for count in (1, 32, 2048):
        x, weight = bfloat16(count, HIDDEN), bfloat16(HIDDEN)
        yield (
            f"RMSNorm, {count} rows",
            {
                "replaced": lambda x=x, w=weight: definitions.rms_norm(x, w, 1e-6),
                "ours": lambda x=x, w=weight: kernels.rms_norm(x, w, 1e-6),
            },
            max(3, 1000 // count),
        )
    for count, length in ((128, 128), (512, 512), (32, 1056), (2048, 2048)):
        yield f"attention, {count} new of {length} tokens", prompts(count, length), 2
    for size, length in ((8, 600), (32, 160), (64, 1100)):
        yield f"attention, {size} decodes of {length} tokens", decodes(size, length), 5


def linears(count: int) -> Alternatives:
    """A large matrix, as it is and in the blocked layout."""
    x, weight = bfloat16(count, HIDDEN), bfloat16(2 * WIDTH, HIDDEN)
    packed = kernels.pack_linear(weight, None)
    return {"replaced": lambda: F.linear(x, weight), "ours": lambda: packed(x)}


def prompts(count: int, length: int) -> Alternatives:
    """The last ``count`` of ``length`` tokens."""
    q, k, v = bfloat16(count, HEADS, DIM), bfloat16(length, KV_HEADS, DIM), bfloat16(length, KV_HEADS, DIM)
    mask = torch.arange(length) <= torch.arange(length - count, length)[:, None]

    def flash() -> object:
        heads = (one.transpose(0, 1)[None] for one in (q, k, v))
        causal = count == length
        return F.scaled_dot_product_attention(
            *heads, attn_mask=None if causal else mask, is_causal=causal, enable_gqa=True
        )

    return {"replaced": flash, "ours": lambda: attend_in_blocks(q, k, v, DIM**-0.5, None)}


def decodes(size: int, length: int) -> Alternatives:
    """One new token of each of ``size`` sequences."""
    q = bfloat16(size, KV_HEADS, HEADS // KV_HEADS, DIM)
    k, v = bfloat16(size, length, KV_HEADS, DIM), bfloat16(size, length, KV_HEADS, DIM)
    mask = torch.zeros(size, 1, 1, length, dtype=torch.bfloat16)
    return {
        "replaced": lambda: F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask),
        "ours": lambda: attend_wide(q, k, v, DIM**-0.5, mask),
    }


def bfloat16(*shape: int) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(*shape).bfloat16()


@torch.inference_mode()
def main() -> None:
    """Race all rows and print the times and their ratios."""
    options = parser(__doc__).parse_args()
    found = {name: race(alternatives, repeats) for name, alternatives, repeats in rows()}
    lines = [
        [name, times["replaced"] * 1e6, times["ours"] * 1e6, ratio(times["replaced"], times["ours"])]
        for name, times in found.items()
    ]
    print(table(["what", "replaced (µs)", "ours (µs)", "times as fast"], lines))
    write_json(options.json, {"seconds": found})


if __name__ == "__main__":
    main()
