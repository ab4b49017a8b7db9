"""The targets for one H200, and how far what ``benchmarks.gpu bench`` measured is from them. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.bounds import Row, bytes_read, flops
from benchmarks.models import SHAPES
from benchmarks.report import table

Found = Mapping[str, Any]
"""Name of a part -> its result."""
ONE_STREAM, CROWD, LONG_PROMPT = (1, 128, 256), (128, 512, 128), (4, 8192, 1)
"""Requests at once, tokens in, tokens out."""


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table."""

    work: str
    measured: float
    unit: str
    wanted: float
    most: bool = False
    """The measured value must not be above ``wanted``; otherwise not below."""

    @property
    def met(self) -> bool:
        """True if the target is reached."""
        return self.measured <= self.wanted if self.most else self.measured >= self.wanted


def name_of(load: Sequence[int]) -> str:
    """What a load is called in the results."""
    count, prompt, output = load
    return f"{count} at once, {prompt} in, {output} out"


def targets(found: Found, backend: str) -> list[Target]:
    """Every target that ``found`` has figures for, with attention backend ``backend``."""
    return [*_decoding(found, backend), *_prefill(found, backend), *_whole(found, backend)]


def _decoding(found: Found, backend: str) -> Iterator[Target]:
    ceilings = found.get("ceilings", {})
    for shape, share, rate in (("llama-8B", 85.0, 220.0), ("llama-1B", 75.0, 1000.0)):
        one = _figure(found, shape, backend, ONE_STREAM)
        if one is None:
            continue
        speed = one["decode_rate"]
        yield Target(f"{shape}, one stream, decode", speed, "tok/s", rate)
        if bandwidth := ceilings.get("copy_bandwidth"):
            _, prompt, output = ONE_STREAM
            least = bytes_read(SHAPES[shape], [Row(1, prompt + output // 2)], 1) / bandwidth
            yield Target(f"{shape}, one stream, of the bandwidth limit", 100 * speed * least, "%", share)
    one = _figure(found, "llama-8B", backend, CROWD)
    if one is not None:
        yield Target("llama-8B, 128 streams, decode", one["decode_rate"], "tok/s", 20_000.0)


def _prefill(found: Found, backend: str) -> Iterator[Target]:
    one = _figure(found, "llama-8B", backend, LONG_PROMPT)
    peak = found.get("ceilings", {}).get("matmul_rate")
    if one is None or not peak:
        return
    tokens = LONG_PROMPT[1]
    rate = flops(SHAPES["llama-8B"], [Row(tokens, 0)], 1) * one["prefill_rate"] / tokens
    yield Target("llama-8B, 8k-token prefill, of the matmul rate", 100 * rate / peak, "%", 60.0)


def _whole(found: Found, backend: str) -> Iterator[Target]:
    if one := found.get(f"prefix llama-8B {backend}"):
        yield Target("shared 2k prefix, 256 requests, against no prefix cache", one["speedup"], "x", 5.0)
    if one := found.get(f"step llama-8B {backend}"):
        yield Target("host time per decode step at batch 128, of the device's", one["host_share"], "x", 1.0, most=True)
        yield Target("idle share of a decode step at batch 128", 100 * one["idle_share"], "%", 3.0, most=True)
    ours, theirs = _figure(found, "llama-8B", backend, CROWD), found.get("reference llama-8B")
    if ours is not None and theirs:
        factor = ours["output_rate"] / theirs["output_rate"]
        yield Target("128 streams against transformers' continuous batching", factor, "x", 3.0)


def _figure(found: Found, shape: str, backend: str, load: Sequence[int]) -> Mapping[str, Any] | None:
    one = found.get(f"speed {shape} {backend}", {}).get(name_of(load))
    return None if one is None or one["failures"] else one


def show(rows: Sequence[Target]) -> str:
    """The table."""
    cells = [
        (one.work, one.measured, f"{'<=' if one.most else '>='} {one.wanted:,g}", one.unit, "yes" if one.met else "NO")
        for one in rows
    ]
    return table(("work", "measured", "target", "unit", "met"), cells)
