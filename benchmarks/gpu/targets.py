"""Targets for one H200, and the distance of ``benchmarks.gpu bench`` results from them. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.bounds import Row, bytes_read, flops
from benchmarks.common.models import SHAPES
from benchmarks.common.report import table

Result = Mapping[str, Any]
"""Results by part."""
ONE_STREAM, CROWD, LONG_PROMPT = (1, 128, 256), (128, 512, 128), (4, 8192, 1)
"""Concurrent requests, tokens in and tokens out."""


@dataclass(frozen=True, slots=True)
class Target:
    """One line of the table."""

    work: str
    measured: float
    unit: str
    target: float
    at_most: bool = False
    """True if the measured value must not be above ``target``; otherwise not below."""

    @property
    def met(self) -> bool:
        """Return True if the target is reached."""
        return self.measured <= self.target if self.at_most else self.measured >= self.target


def name_of(load: Sequence[int]) -> str:
    """Return the name of a load in the results."""
    count, prompt, output = load
    return f"{count} at once, {prompt} in, {output} out"


def targets(results: Result, backend: str) -> list[Target]:
    """Return every target with figures in ``results`` for attention backend ``backend``."""
    return [*_decoding(results, backend), *_prefill(results, backend), *_whole(results, backend)]


def _decoding(results: Result, backend: str) -> Iterator[Target]:
    ceilings = results.get("ceilings", {})
    for shape, share, rate in (("llama-8B", 85.0, 220.0), ("llama-1B", 75.0, 1000.0)):
        figure = _figure(results, shape, backend, ONE_STREAM)
        if figure is None:
            continue
        speed = figure["decode_rate"]
        yield Target(f"{shape}, one stream, decode", speed, "tok/s", rate)
        if bandwidth := ceilings.get("copy_bandwidth"):
            _, prompt, output = ONE_STREAM
            min_seconds = bytes_read(SHAPES[shape], [Row(1, prompt + output // 2)], 1) / bandwidth
            yield Target(f"{shape}, one stream, of the bandwidth limit", 100 * speed * min_seconds, "%", share)
    figure = _figure(results, "llama-8B", backend, CROWD)
    if figure is not None:
        yield Target("llama-8B, 128 streams, decode", figure["decode_rate"], "tok/s", 20_000.0)


def _prefill(results: Result, backend: str) -> Iterator[Target]:
    figure = _figure(results, "llama-8B", backend, LONG_PROMPT)
    peak = results.get("ceilings", {}).get("matmul_rate")
    if figure is None or not peak:
        return
    tokens = LONG_PROMPT[1]
    rate = flops(SHAPES["llama-8B"], [Row(tokens, 0)], 1) * figure["prefill_rate"] / tokens
    yield Target("llama-8B, 8k-token prefill, of the matmul rate", 100 * rate / peak, "%", 60.0)


def _whole(results: Result, backend: str) -> Iterator[Target]:
    if figure := results.get(f"prefix llama-8B {backend}"):
        yield Target("shared 2k prefix, 256 requests, against no prefix cache", figure["speedup"], "x", 5.0)
    if figure := results.get(f"step llama-8B {backend}"):
        yield Target(
            "host time per decode step at batch 128, of the device's", figure["host_share"], "x", 1.0, at_most=True
        )
        yield Target("idle share of a decode step at batch 128", 100 * figure["idle_share"], "%", 3.0, at_most=True)
    ours, theirs = _figure(results, "llama-8B", backend, CROWD), results.get("reference llama-8B")
    if ours is not None and theirs:
        factor = ours["output_rate"] / theirs["output_rate"]
        yield Target("128 streams against transformers' continuous batching", factor, "x", 3.0)


def _figure(results: Result, shape: str, backend: str, load: Sequence[int]) -> Mapping[str, Any] | None:
    figure = results.get(f"speed {shape} {backend}", {}).get(name_of(load))
    return None if figure is None or figure["failures"] else figure


def show(rows: Sequence[Target]) -> str:
    """Format the table."""
    cells = [
        (
            row.work,
            row.measured,
            f"{'<=' if row.at_most else '>='} {row.target:,g}",
            row.unit,
            "yes" if row.met else "NO",
        )
        for row in rows
    ]
    return table(("work", "measured", "target", "unit", "met"), cells)
