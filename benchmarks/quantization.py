"""Gain of quantized weights: decode steps of one model in several formats, alternating in blocks.

Run as ``python -m benchmarks.quantization``. All engines live in this process with the same random weights, so that a
noisy machine treats them alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.common.engine_driver import ListInbox, decode_seconds, nobody
from benchmarks.common.models import SHAPES, write_model
from benchmarks.common.report import parser, table, write_json
from sglang_plug import EngineConfig, PluginOptions, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat

Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of an engine's matrices."""

    quantization: str = "auto"
    settings: Settings = field(default_factory=dict)
    stored: Mapping[str, Any] | None = None
    """The checkpoint's ``quantization_config``."""


FOUR_BITS = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
FORMATS: dict[str, Format] = {
    "bfloat16": Format(quantization="none"),
    "int8": Format(quantization="int8"),
    "int8 with head": Format(quantization="int8", settings={"int8": {"head": True}}),
    "4 bits, groups of 128": Format(stored=FOUR_BITS),
    "4 bits, groups of 32": Format(stored={**FOUR_BITS, "group_size": 32}),
    "8 bits, groups of 128": Format(stored={**FOUR_BITS, "bits": 8}),
    "e4m3, blocks of 128": Format(stored={"quant_method": "fp8", "weight_block_size": [128, 128]}),
}
"""Format by table row. The speed of products does not depend on the numbers, so they are random."""
SPARE = 3
"""Output tokens that are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of a decode step of ``batch`` sequences."""

    format: str
    batch: int
    best: float
    middle: float
    times_as_fast: float
    """Median over the blocks of the ratio of the first format's time to this one's, measured in sequence."""


class Bench:
    """One engine whose steps a script takes."""

    def __init__(self, folder: Path, kept: Format, kernels: str = "auto") -> None:
        stored = {} if kept.stored is None else {"quantization_config": dict(kept.stored)}
        config = EngineConfig(
            model=ModelOptions(path=str(folder), load_format="dummy", device="cpu", dtype="bfloat16", overrides=stored),
            cache=CacheOptions(max_total_tokens=4096, prefix_cache="none"),
            backends=BackendOptions(quantization=kept.quantization, kernels=kernels, grammar="none"),
            plugins=PluginOptions(settings=kept.settings),
            log_level="warning",
        )
        self.inbox = ListInbox()
        self.loop = build_engine(config, Plugins.discover(config.plugins), self.inbox, nobody, Heartbeat())

    def steps(self, batch: int, count: int) -> list[float]:
        """Return the seconds of ``count`` decode steps of ``batch`` sequences."""
        params = SamplingParams(max_new_tokens=count + SPARE, temperature=0.0)
        requests = [Request(id=str(row), tokens=(300 + row, 301), params=params) for row in range(batch)]
        return decode_seconds(self.loop, self.inbox, requests, count)


def compare(benches: dict[str, Bench], batch: int, blocks: int, count: int) -> list[Cost]:
    """Alternate between the engines."""
    times: dict[str, list[list[float]]] = {name: [] for name in benches}
    for _ in range(blocks):
        for name, bench in benches.items():
            times[name].append(bench.steps(batch, count))
    first = [median(block) for block in next(iter(times.values()))]
    return [
        Cost(
            format=name,
            batch=batch,
            best=min(map(min, durations)) * 1e3,
            middle=median(step for block in durations for step in block) * 1e3,
            times_as_fast=median(item / median(block) for item, block in zip(first, durations, strict=True)),
        )
        for name, durations in times.items()
    ]


def measure(
    shape: str, formats: Sequence[str], batches: Sequence[int], blocks: int, count: int, kernels: str = "auto"
) -> list[Cost]:
    """Build an engine for each format and compare them at each batch size."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(SHAPES[shape], Path(folder))
        benches = {name: Bench(path, FORMATS[name], kernels) for name in formats}
    return [cost for batch in batches for cost in compare(benches, batch, blocks, count)]


@torch.inference_mode()
def main() -> None:
    """Print a table."""
    arguments = parser(__doc__)
    arguments.add_argument("--shape", default="0.5B", choices=sorted(SHAPES))
    arguments.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS))
    arguments.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    arguments.add_argument("--blocks", type=int, default=7)
    arguments.add_argument("--kernels", default="auto")
    arguments.add_argument("--steps", type=int, default=16, help="decode steps of a block")
    options = arguments.parse_args()
    result = measure(options.shape, options.formats, options.batches, options.blocks, options.steps, options.kernels)
    rows = [[item.format, item.batch, item.best, item.middle, item.times_as_fast] for item in result]
    print(table(["format", "sequences", "best (ms)", "median (ms)", "times as fast"], rows))
    write_json(options.json, {"costs": result})


if __name__ == "__main__":
    main()
