"""Workloads W1 to W4 against a server with random weights, each compared with the machine's bound.

Run as ``python -m benchmarks.workloads``: starts ``sglang-plug serve`` for each shape and runs the workloads over HTTP
with streaming. On a shared machine limits move within seconds, so the machine is probed before and after every run,
and each run is held against the mean of its two probes. The share of a workload is the median of its runs'. A share
above one means that the machine was faster during the run than around it. Next to it stands the share of a bound whose
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

from benchmarks.common.bounds import Machine, run_seconds
from benchmarks.common.models import SHAPES, Shape, write_model
from benchmarks.common.probe import Limits, PackedLimits, quick_probe
from benchmarks.common.report import parser, ratio, table, write_json
from benchmarks.common.server import serving
from benchmarks.load import Figures, Load, run

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A workload. ``output_len`` may differ by shape, to limit the time of a run of the larger one."""

    requests: int
    input_len: int
    output_len: Mapping[str, int]
    shared: int = 0
    first_token: bool = False
    """True if the result is the time to the first token, not output tokens per second."""

    def output(self, shape: str) -> int:
        """Return the number of requested tokens."""
        return self.output_len.get(shape, self.output_len["0.5B"])


WORKS = {
    "W1": Work(requests=1, input_len=128, output_len={"0.5B": 128, "1B": 64}),
    "W2": Work(requests=32, input_len=128, output_len={"0.5B": 64, "1B": 32}),
    "W3": Work(requests=64, input_len=32, shared=1024, output_len={"0.5B": 16}),
    "W4": Work(requests=1, input_len=2048, output_len={"0.5B": 1}, first_token=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Results of one run, and the machine's limits around it."""

    figures: Figures
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of one workload."""

    shape: str
    work: str
    unit: str
    runs: tuple[float, ...]
    bounds: tuple[float, ...]
    """The machine's bound during each run."""
    share: float
    """Median share of the bound that the runs reached."""
    packed_share: float
    """Share of a bound with product rates of oneDNN's packed matrices at the same number of rows."""
    cached_share: float
    """Share of the prompt tokens from the prefix cache."""
    cached_possible: float
    """The same share if the shared prefix is computed exactly once."""
    figures: tuple[Figures, ...]


def between(before: Limits, after: Limits) -> Limits:
    """Return the mean of two probes, limit by limit."""
    names = [name for name in before.matmul if name in after.matmul]
    return dataclasses.replace(
        before,
        read_bandwidth=(before.read_bandwidth + after.read_bandwidth) / 2,
        matmul={name: (before.matmul[name] + after.matmul[name]) / 2 for name in names},
        packed={rows: (rate + after.packed[rows]) / 2 for rows, rate in before.packed.items()},
        points=(*before.points, *after.points),
    )


def judge(shape: Shape, name: str, results: list[Run]) -> Measured:
    """Compare each of ``results`` with the bound of its own limits; failed runs do not count."""
    work, output = WORKS[name], WORKS[name].output(shape.name)
    good = [run for run in results if not run.figures.failures]
    min_seconds = [_min_seconds(shape, name, run.limits) for run in good]
    packed = [_min_seconds(shape, name, PackedLimits(run.limits)) for run in good if run.limits.packed]
    if work.first_token:
        unit, bounds = "s to first token", tuple(min_seconds)
        runs = tuple(run.figures.first_token.best for run in good)
        taken = list(runs)
    else:
        unit, bounds = "tokens/s", tuple(work.requests * output / seconds for seconds in min_seconds)
        runs = tuple(run.figures.output_rate for run in good)
        taken = [work.requests * output / rate for rate in runs]
    prompt = work.requests * (work.shared + work.input_len)
    cached = (ratio(run.figures.cached_tokens, run.figures.prompt_tokens) for run in good)
    return Measured(
        shape=shape.name,
        work=name,
        unit=unit,
        runs=runs,
        bounds=bounds,
        share=_median_share(min_seconds, taken),
        packed_share=_median_share(packed, taken),
        cached_share=max(cached, default=float("nan")),
        cached_possible=ratio((work.requests - 1) * work.shared, prompt),
        figures=tuple(run.figures for run in results),
    )


def _min_seconds(shape: Shape, name: str, machine: Machine) -> float:
    work = WORKS[name]
    return run_seconds(
        shape,
        machine,
        requests=work.requests,
        input_len=work.input_len,
        output_len=1 if work.first_token else work.output(shape.name),
        shared=work.shared,
    )


def _median_share(min_seconds: Sequence[float], taken: Sequence[float]) -> float:
    shares = [ratio(bound, seconds) for bound, seconds in zip(min_seconds, taken, strict=False)]
    return statistics.median(shares) if shares else float("nan")


def run_work(url: str, shape: Shape, name: str, args: argparse.Namespace) -> list[Run]:
    """Run a workload ``--repeats`` times with different prompts, probing before and after each."""
    work = WORKS[name]
    load = Load(
        url=url,
        requests=work.requests,
        input_len=work.input_len,
        output_len=work.output(shape.name),
        shared_prefix_len=work.shared,
        vocabulary=shape.vocabulary,
        api=args.api,
        model=args.model,
    )
    result, before = [], quick_probe()
    for repeat in range(args.repeats):
        seed = args.seed + 1 + repeat * len(WORKS) + sorted(WORKS).index(name)
        figures = asyncio.run(run(dataclasses.replace(load, seed=seed)))
        after = quick_probe()
        result.append(Run(figures, between(before, after)))
        before = after
    return result


async def warm(url: str, shape: Shape, args: argparse.Namespace) -> Figures:
    """Send a few small requests: first calls build kernels and start threads."""
    load = Load(url=url, requests=4, input_len=64, output_len=8, vocabulary=shape.vocabulary, seed=args.seed)
    return await run(dataclasses.replace(load, api=args.api, model=args.model))


@contextmanager
def target(shape: Shape, args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Yield the URL of the server to measure: the given one, or one of our own."""
    if args.url:
        yield args.url
        return
    model = write_model(shape, folder)
    arguments = ["--model-path", str(model), "--load-format", "dummy", "--dtype", "bfloat16", "--skip-tokenizer-init"]
    with serving([*arguments, *args.server_arguments], log=folder / f"{shape.name}.log") as server:
        print(f"{shape.name}: ready after {server.start_seconds:.1f} s, {server.memory / GIB:.2f} GiB resident")
        print(f"{shape.name}: {describe(server.url)}", flush=True)
        yield server.url


def describe(url: str) -> str:
    """Return the server's resolved settings."""
    info = httpx.get(f"{url}/server_info", timeout=30.0).json()
    names = {kind: item.get("name") for kind, item in info.get("components", {}).items()}
    return ", ".join(f"{kind} {name}" for kind, name in names.items())


def measure_shape(shape: Shape, args: argparse.Namespace) -> list[Measured]:
    """Run every workload."""
    results: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, target(shape, args, Path(folder)) as url:
        trial = asyncio.run(warm(url, shape, args))
        if trial.failures:
            raise RuntimeError(f"the warm-up failed: {trial.errors}")
        for name in args.work:
            runs = run_work(url, shape, name, args)
            reads = " ".join(f"{figures.limits.read_bandwidth / 1e9:.1f}" for figures in runs)
            rates = " ".join(f"{figures.limits.matmul['bfloat16'] / 1e9:,.0f}" for figures in runs)
            print(f"{shape.name} {name} limits of each run: {reads} GB/s; {rates} GFLOP/s", flush=True)
            results.append(judge(shape, name, runs))
            print(show(results[-1:]), flush=True)
    return results


def show(measured: list[Measured]) -> str:
    """Format each workload next to its bound."""
    rows = []
    for workload in measured:
        best = (min if WORKS[workload.work].first_token else max)(workload.runs, default=float("nan"))
        runs = (
            " ".join(f"{run:.4g}/{bound:.4g}" for run, bound in zip(workload.runs, workload.bounds, strict=True))
            or "failed"
        )
        rows.append(
            (
                f"{workload.shape} {workload.work}",
                workload.unit,
                best,
                workload.share,
                workload.packed_share,
                workload.cached_share,
                runs,
            )
        )
    header = ("workload", "unit", "best", "share of bound", "of packed products", "cached share", "runs/bounds")
    possible = {item.work: item.cached_possible for item in measured if item.cached_possible}
    notes = [f"{work}: a prefix computed once gives a cached share of {share:.4g}" for work, share in possible.items()]
    errors = [
        f"{item.shape} {item.work} failed: {text}" for item in measured for f in item.figures for text in f.errors
    ]
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
    args = options.parse_args()
    measured: list[Measured] = []
    for name in args.shape:
        measured += measure_shape(SHAPES[name], args)
    print(show(measured))
    write_json(args.json, measured)


if __name__ == "__main__":
    main()
