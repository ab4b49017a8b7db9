"""Workloads W1 to W4 against a server with random weights, each beside the bound that the machine's limits give.

Run as ``python -m benchmarks.workloads``: starts ``sglang-plug serve`` for each shape and runs the workloads over HTTP
with streaming. On a shared machine limits move within seconds, so the machine is probed before and after every run,
and each run is held against the mean of its two probes. The share of a workload is the median of its runs'. A share
above one means that the machine was faster during the run than around it. Beside it stands the share of a bound whose
products are only as fast as oneDNN's packed ones with as many rows.

* W1: one stream, 128 tokens in. Output tokens per second.
* W2: 32 at once, 128 tokens in. Output tokens per second.
* W3: 64 at once, 1,024 tokens in common and 32 own ones, 16 out. Output tokens per second.
* W4: 2,048 tokens in. Time to the first token.

With ``--url`` another server is measured that runs already, in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.bounds import Machine, run_seconds
from benchmarks.load import Figures, Load, run
from benchmarks.models import SHAPES, Shape, write_model
from benchmarks.probe import Limits, PackedLimits, quick_probe
from benchmarks.report import parser, ratio, table, write_json
from benchmarks.server import serving

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A workload. ``output_len`` may differ by shape, so that a run of the larger one does not take too long."""

    requests: int
    input_len: int
    output_len: Mapping[str, int]
    shared: int = 0
    first_token: bool = False
    """What counts is the time to the first token, not output tokens per second."""

    def output(self, shape: str) -> int:
        """Tokens to ask for."""
        return self.output_len.get(shape, self.output_len["0.5B"])


WORKS = {
    "W1": Work(requests=1, input_len=128, output_len={"0.5B": 128, "1B": 64}),
    "W2": Work(requests=32, input_len=128, output_len={"0.5B": 64, "1B": 32}),
    "W3": Work(requests=64, input_len=32, shared=1024, output_len={"0.5B": 16}),
    "W4": Work(requests=1, input_len=2048, output_len={"0.5B": 1}, first_token=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed, and what the machine allowed around it."""

    figures: Figures
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One workload's outcome."""

    shape: str
    work: str
    unit: str
    runs: tuple[float, ...]
    bounds: tuple[float, ...]
    """What the machine allowed while each run was made."""
    share: float
    """Of the bound that the runs reached, the median."""
    packed_share: float
    """The same of a bound whose products are only as fast as oneDNN's packed ones with as many rows."""
    cached_share: float
    """Of the prompt tokens, those that came from the prefix cache."""
    cached_possible: float
    """The same if the shared prefix is computed exactly once."""
    figures: tuple[Figures, ...]


def between(before: Limits, after: Limits) -> Limits:
    """The mean of two probes, limit by limit."""
    names = [name for name in before.matmul if name in after.matmul]
    return dataclasses.replace(
        before,
        read_bandwidth=(before.read_bandwidth + after.read_bandwidth) / 2,
        matmul={name: (before.matmul[name] + after.matmul[name]) / 2 for name in names},
        packed={rows: (rate + after.packed[rows]) / 2 for rows, rate in before.packed.items()},
        points=(*before.points, *after.points),
    )


def judge(shape: Shape, name: str, found: list[Run]) -> Measured:
    """Compare each of ``found`` with the bound of its own limits; failed runs do not count."""
    work, output = WORKS[name], WORKS[name].output(shape.name)
    good = [one for one in found if not one.figures.failures]
    least = [_least_seconds(shape, name, one.limits) for one in good]
    packed = [_least_seconds(shape, name, PackedLimits(one.limits)) for one in good if one.limits.packed]
    if work.first_token:
        unit, bounds = "s to first token", tuple(least)
        runs = tuple(one.figures.first_token.best for one in good)
        taken = list(runs)
    else:
        unit, bounds = "tokens/s", tuple(work.requests * output / seconds for seconds in least)
        runs = tuple(one.figures.output_rate for one in good)
        taken = [work.requests * output / rate for rate in runs]
    prompt = work.requests * (work.shared + work.input_len)
    cached = (ratio(one.figures.cached_tokens, one.figures.prompt_tokens) for one in good)
    return Measured(
        shape=shape.name,
        work=name,
        unit=unit,
        runs=runs,
        bounds=bounds,
        share=_median_share(least, taken),
        packed_share=_median_share(packed, taken),
        cached_share=max(cached, default=float("nan")),
        cached_possible=ratio((work.requests - 1) * work.shared, prompt),
        figures=tuple(one.figures for one in found),
    )


def _least_seconds(shape: Shape, name: str, machine: Machine) -> float:
    work = WORKS[name]
    return run_seconds(
        shape,
        machine,
        requests=work.requests,
        input_len=work.input_len,
        output_len=1 if work.first_token else work.output(shape.name),
        shared=work.shared,
    )


def _median_share(least: Sequence[float], taken: Sequence[float]) -> float:
    shares = [ratio(bound, seconds) for bound, seconds in zip(least, taken, strict=False)]
    return statistics.median(shares) if shares else float("nan")


def run_work(url: str, shape: Shape, name: str, given: argparse.Namespace) -> list[Run]:
    """Run a workload ``--repeats`` times, each time with other prompts, with a probe before and after each."""
    work = WORKS[name]
    load = Load(
        url=url,
        requests=work.requests,
        input_len=work.input_len,
        output_len=work.output(shape.name),
        shared_prefix_len=work.shared,
        vocabulary=shape.vocabulary,
        api=given.api,
        model=given.model,
    )
    found, before = [], quick_probe()
    for repeat in range(given.repeats):
        seed = given.seed + 1 + repeat * len(WORKS) + sorted(WORKS).index(name)
        figures = asyncio.run(run(dataclasses.replace(load, seed=seed)))
        after = quick_probe()
        found.append(Run(figures, between(before, after)))
        before = after
    return found


async def warm(url: str, shape: Shape, given: argparse.Namespace) -> Figures:
    """A few small requests: first calls build kernels and start threads."""
    load = Load(url=url, requests=4, input_len=64, output_len=8, vocabulary=shape.vocabulary, seed=given.seed)
    return await run(dataclasses.replace(load, api=given.api, model=given.model))


@contextmanager
def target(shape: Shape, given: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The URL of the server to measure: the one named, or one of our own."""
    if given.url:
        yield given.url
        return
    model = write_model(shape, folder)
    arguments = ["--model-path", str(model), "--load-format", "dummy", "--dtype", "bfloat16", "--skip-tokenizer-init"]
    with serving([*arguments, *given.server_arguments], log=folder / f"{shape.name}.log") as server:
        print(f"{shape.name}: ready after {server.start_seconds:.1f} s, {server.memory / GIB:.2f} GiB resident")
        print(f"{shape.name}: {describe(server.url)}", flush=True)
        yield server.url


def describe(url: str) -> str:
    """What the server says it chose."""
    info = httpx.get(f"{url}/server_info", timeout=30.0).json()
    names = {kind: one.get("name") for kind, one in info.get("components", {}).items()}
    return ", ".join(f"{kind} {name}" for kind, name in names.items())


def measure_shape(shape: Shape, given: argparse.Namespace) -> list[Measured]:
    """Run every workload."""
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, target(shape, given, Path(folder)) as url:
        trial = asyncio.run(warm(url, shape, given))
        if trial.failures:
            raise RuntimeError(f"the warm-up failed: {trial.errors}")
        for name in given.work:
            runs = run_work(url, shape, name, given)
            reads = " ".join(f"{one.limits.read_bandwidth / 1e9:.1f}" for one in runs)
            rates = " ".join(f"{one.limits.matmul['bfloat16'] / 1e9:,.0f}" for one in runs)
            print(f"{shape.name} {name} limits of each run: {reads} GB/s; {rates} GFLOP/s", flush=True)
            found.append(judge(shape, name, runs))
            print(show(found[-1:]), flush=True)
    return found


def show(measured: list[Measured]) -> str:
    """Each workload beside its bound."""
    rows = []
    for one in measured:
        best = (min if WORKS[one.work].first_token else max)(one.runs, default=float("nan"))
        runs = " ".join(f"{run:.4g}/{bound:.4g}" for run, bound in zip(one.runs, one.bounds, strict=True)) or "failed"
        rows.append((f"{one.shape} {one.work}", one.unit, best, one.share, one.packed_share, one.cached_share, runs))
    header = ("workload", "unit", "best", "share of bound", "of packed products", "cached share", "runs/bounds")
    possible = {one.work: one.cached_possible for one in measured if one.cached_possible}
    notes = [f"{work}: a prefix computed once gives a cached share of {share:.4g}" for work, share in possible.items()]
    errors = [f"{one.shape} {one.work} failed: {text}" for one in measured for f in one.figures for text in f.errors]
    return "\n".join((table(header, rows), *notes, *errors))


def main() -> None:
    """Measure and print; asserts nothing."""
    options = parser(__doc__)
    options.add_argument("--shape", nargs="+", choices=sorted(SHAPES), default=["0.5B", "1B"])
    options.add_argument("--work", nargs="+", choices=sorted(WORKS), default=sorted(WORKS))
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--url", help="measure this server instead of starting one; name one --shape, the one it has")
    options.add_argument("--api", choices=("generate", "completions"), default="generate")
    options.add_argument("--model", default="default", help="name that /v1/completions asks for")
    options.add_argument("server_arguments", nargs="*", help="after --: more options for sglang-plug serve")
    given = options.parse_args()
    measured: list[Measured] = []
    for name in given.shape:
        measured += measure_shape(SHAPES[name], given)
    print(show(measured))
    write_json(given.json, measured)


if __name__ == "__main__":
    main()
