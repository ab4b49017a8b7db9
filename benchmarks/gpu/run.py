"""Correctness (``check``) and speed (``bench``) of a CUDA machine in one command.

Run as ``python -m benchmarks.gpu check --out FOLDER`` and ``python -m benchmarks.gpu bench --out FOLDER``. ``check``
runs every attention backend through the conformance tests, every kernel against its definition, and compares tokens
with transformers', with CUDA graphs and without. ``bench`` probes the machine's ceilings and measures the work of
``gpu_targets`` with random weights. Needs no network. Each part runs in a process of its own, so that neither an error
nor a hang nor a broken CUDA context hides the others; ``FOLDER/gpu-check.json`` or ``FOLDER/gpu-bench.json`` is
rewritten after every part. ``gpu_bundle.sh`` prepares the dependencies for a machine without network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.common.report import machine, plain
from benchmarks.gpu.targets import show, targets

MIN_SECONDS = 15.0
"""Minimum remaining seconds for starting a part."""
ERROR_LINES = 25
HALF = ("bfloat16", "float16")
GRAPHS = ("graphs", "no-graphs")
FLOAT8 = ("fp8_e4m3", "fp8_e5m2")
MEMORY_SHAPE = "llama-1B"
SINGLE_RANK = ("memory",)
"""Parts that measure all of the device's memory: nothing else may run at the same time."""
PartRunner = Callable[[tuple[str, ...], str, float], dict[str, Any]]
"""Function that runs a part on a device within some seconds, and returns its outcome."""


def selected_parts(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Return the selected parts in order of importance, cheap ones before expensive ones."""
    yield ("environment",)
    yield from checks(args.backends) if args.command == "check" else measurements(args.shapes, args.backends)


def checks(backends: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return the correctness checks. FlashInfer has no float32 and compiles each kind of layer first: rare last."""
    if "flashinfer" in backends:
        yield ("modules",)
    yield ("kernels",)
    yield ("quantized",)
    yield ("recurrent",)
    yield ("sampling",)
    if "triton" in backends:
        yield ("launches",)
    for backend in backends:
        plain_only = ("plain",) if backend == "flashinfer" else ()
        yield ("conformance", backend, "bfloat16", *plain_only)
        yield from (("near", backend, graphs) for graphs in GRAPHS)
        yield from (("conformance", backend, "bfloat16", "plain", kept) for kept in FLOAT8)
        yield ("near", backend, "graphs", FLOAT8[0])
        if backend != "torch":
            yield ("near", backend, "pieces")
        if backend != "flashinfer":
            yield ("conformance", backend, "float32")
            yield from (("parity", backend, graphs) for graphs in GRAPHS)
            if backend != "torch":
                yield ("parity", backend, "pieces")
            yield ("adapters", backend)
        if backend != "torch":
            yield from (("overlap", MEMORY_SHAPE, backend, graphs) for graphs in GRAPHS)
    yield from (("memory", MEMORY_SHAPE, backend) for backend in backends if backend != "torch")
    if "flashinfer" in backends:
        yield from (("conformance", "flashinfer", dtype) for dtype in HALF)


def measurements(shapes: Sequence[str], backends: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Return the measurements, and the ceilings to compare them with."""
    yield ("ceilings",)
    first, *others = backends
    yield from (("speed", shape, first) for shape in shapes)
    yield from ((part, shapes[-1], first) for part in ("step", "prefix"))
    yield ("sampling_speed",)
    if "triton" in backends:
        yield ("rows", *shapes)
        yield ("layers", *shapes)
    yield ("reference", shapes[-1])
    yield ("prompts", first, *shapes)
    if "triton" in backends:
        yield ("adapter_steps", shapes[-1], first)
    yield ("speed", shapes[-1], first, FLOAT8[0])
    yield from (("speed", shape, backend) for backend in others for shape in shapes)
    if "triton" in backends:
        yield ("quantized_speed", shapes[-1])
        yield ("recurrent_speed",)
        yield ("moe",)


def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
    """Run one part in its own process; return its result or the reason of its failure."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "part",
            *part,
            "--device",
            device,
            "--file",
            str(file),
        ]
        outcome: dict[str, Any] = {"part": " ".join(part), "ok": False}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            trace = error.stderr or b""
            outcome["error"] = f"not done after {seconds:.0f} s"
            outcome["trace"] = _tail(trace.decode(errors="replace") if isinstance(trace, bytes) else trace)
        else:
            if done.returncode == 0 and file.is_file():
                outcome |= {"ok": True, "result": json.loads(file.read_text(encoding="utf-8"))}
            else:
                outcome |= {"error": f"exit status {done.returncode}", "trace": _tail(done.stderr)}
    outcome["seconds"] = round(time.perf_counter() - started, 1)
    return outcome


def _tail(text: str) -> list[str]:
    return text.splitlines()[-ERROR_LINES:]


def summary(outcome: dict[str, Any]) -> str:
    """Format one line, and for throughput one more for each load."""
    if not outcome["ok"]:
        last = outcome.get("trace") or [""]
        return f"FAILED  {outcome['part']}: {outcome['error']} {last[-1]}"
    lines = [f"ok      {outcome['part']} ({outcome['seconds']} s)"]
    result = outcome["result"]
    if outcome["part"].startswith("memory "):
        lines += [f"        {line}" for line in memory_lines(result)]
    if outcome["part"].startswith("prompts "):
        lines += [f"        {name}: {prompts_line(entry)}" for name, entry in result.items()]
    if outcome["part"].startswith("adapter_steps "):
        lines += [f"        {batch} at once: {steps_line(entry)}" for batch, entry in result.items()]
    if outcome["part"] == "moe":
        lines += [f"        {name}: {tiles_line(entry)}" for name, entry in result.items()]
    for name, item in result.items() if isinstance(result, dict) else ():
        if isinstance(item, dict) and "output_rate" in item:
            step = (item["decode_step"]["p50"] or 0.0) * 1e3
            lines.append(
                f"        {name}: {item['output_rate']:,.0f} output tokens/s, decoding {item['decode_rate']:,.0f}, "
                f"prefill {item['prefill_rate']:,.0f}, step {step:.2f} ms, {item['failures']} failed"
            )
    return "\n".join(lines)


def prompts_line(lengths: dict[str, Any]) -> str:
    """Format the time of a step for each length, and its fraction with piecewise graphs."""
    return ", ".join(
        f"{length} tokens {result['pieces']:.2f} ms ({result['ratio']:.2f})" for length, result in lengths.items()
    )


def steps_line(result: dict[str, float]) -> str:
    """Format the time of a step of each kind."""
    return ", ".join(f"{kind} {milliseconds:.2f} ms" for kind, milliseconds in result.items())


def memory_lines(result: dict[str, Any]) -> list[str]:
    """Format the memory of each stage of a start, and the remaining memory."""
    stages = ", ".join(f"{name} {_gib(taken)}" for name, taken in result["stages"].items())
    return [
        f"GiB of {_gib(result['total'])}: {stages}",
        f"free after start {_gib(result['free_after_start'])}, after serving {_gib(result['free_after_serving'])}; "
        f"{result['tokens']:,} tokens in the pool, {result['captured']} graphs",
    ]


def tiles_line(result: dict[str, Any]) -> str:
    """Compare the sizes of the table with the fastest ones tried."""
    chosen, best = ("x".join(map(str, result[name].values())) for name in ("chosen", "best"))
    mine, theirs = result["chosen_seconds"], result["best_seconds"]
    failed = f", not run: {'; '.join(result['failed'])}" if result["failed"] else ""
    return (
        f"{chosen} {mine * 1e6:,.0f} us, best of {result['tried']} {best} {theirs * 1e6:,.0f} us "
        f"({mine / theirs:.2f} times as long){failed}"
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f}"


def run_all(args: argparse.Namespace, runner: PartRunner = run_part) -> list[dict[str, Any]]:
    """Run every part that fits into the time budget, ``args.jobs`` at once except those in ``SINGLE_RANK``."""
    deadline = time.monotonic() + args.budget
    args.out.mkdir(parents=True, exist_ok=True)
    parts = list(selected_parts(args))
    outcomes: dict[int, dict[str, Any]] = {}
    broken: set[str] = set()

    def run(index: int) -> int:
        part = instead(parts[index], args.backends, broken)
        remaining = deadline - time.monotonic()
        if any(item["part"] == " ".join(part) for item in list(outcomes.values())):
            return index  # another backend's part, already replaced by this one
        if remaining < MIN_SECONDS:
            outcome: dict[str, Any] = {"part": " ".join(part), "ok": False, "error": "no time left", "seconds": 0.0}
        else:
            outcome = runner(part, args.device, min(remaining, args.part_limit))
        if part[0] == "speed" and outcome.get("error", "").startswith("exit status"):
            broken.add(part[2])
        outcomes[index] = outcome
        return index

    def tell(index: int) -> None:
        if index in outcomes:
            print(summary(outcomes[index]), flush=True)
            write(args, [outcomes[outcome] for outcome in sorted(outcomes)])

    for alone, indices in groupby(range(len(parts)), lambda index: parts[index][0] in SINGLE_RANK):
        with ThreadPoolExecutor(1 if alone else args.jobs) as pool:
            for done in as_completed([pool.submit(run, index) for index in indices]):
                tell(done.result())
    return [outcomes[index] for index in sorted(outcomes)]


def instead(part: tuple[str, ...], backends: Sequence[str], broken: Collection[str]) -> tuple[str, ...]:
    """Return ``part`` with the first working backend instead of a failing one, if there is any."""
    working = next((backend for backend in backends if backend not in broken), None)
    return part if working is None else tuple(working if item in broken else item for item in part)


def write(args: argparse.Namespace, outcomes: Sequence[dict[str, Any]]) -> None:
    """Write all results so far."""
    document = {"machine": machine(), "device": args.device, "parts": outcomes, "targets": reached(args, outcomes)}
    text = json.dumps(plain(document), indent=1)
    (args.out / f"gpu-{args.command}.json").write_text(text + "\n", encoding="utf-8")


def reached(args: argparse.Namespace, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the targets with figures for each attention backend."""
    results = {outcome["part"]: outcome["result"] for outcome in outcomes if outcome["ok"]}
    return {backend: targets(results, backend) for backend in args.backends} if args.command == "bench" else {}


def arguments() -> argparse.ArgumentParser:
    """Define the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text, backends, jobs in (
        ("check", "is it right", ["torch", "triton", "flashinfer"], 5),
        ("bench", "is it fast", ["flashinfer", "triton"], 1),
    ):
        options = commands.add_parser(name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        options.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for the JSON file")
        options.add_argument("--device", default="cuda")
        options.add_argument("--backends", nargs="+", default=backends, help="bench measures the first one whole")
        options.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
        options.add_argument("--jobs", type=int, default=jobs, help="parts at once; more than one spoil all figures")
        options.add_argument("--part-limit", type=float, default=240.0, help="seconds for one part")
        if name == "bench":
            shapes = ["tiny", "llama-1B", "llama-8B"]
            options.add_argument("--shapes", nargs="+", default=shapes[1:], choices=shapes)
    part = commands.add_parser("part", help="run one part here (used by the others)")
    part.add_argument("names", nargs="+", metavar="NAME")
    part.add_argument("--device", default="cuda")
    part.add_argument("--file", type=Path, help="for the result; otherwise it is printed")
    return parser


def main() -> int:
    """Run every part or the given one; the exit status is 1 if a part failed."""
    args = arguments().parse_args()
    if args.command == "part":
        from benchmarks.gpu.parts import PARTS  # torch: only the children need it

        name, *rest = args.names
        result = json.dumps(plain(PARTS[name](args.device, *rest)), indent=1)
        if args.file:
            args.file.write_text(result, encoding="utf-8")
        else:
            print(result)
        return 0
    outcomes = run_all(args)
    for backend, rows in reached(args, outcomes).items():
        print(f"\n{backend}\n{show(rows)}")
    return 0 if all(outcome["ok"] for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
