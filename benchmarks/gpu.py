"""One command for a CUDA machine: is it right there (``check``), and how fast is it (``bench``)?

Run as ``python -m benchmarks.gpu check --out FOLDER`` and ``python -m benchmarks.gpu bench --out FOLDER``. ``check``
runs every attention backend through the conformance kit, every kernel against its definition, and compares tokens
with transformers', with CUDA graphs and without. ``bench`` probes the machine's ceilings and measures the work of
``gpu_targets`` with random weights. Needs no network. Each part runs in a process of its own, so that neither an error
nor a hang nor a broken CUDA context hides the others; ``FOLDER/gpu-check.json`` or ``FOLDER/gpu-bench.json`` is
rewritten after every part. ``gpu_bundle.sh`` prepares what a machine without network lacks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu_targets import show, targets
from benchmarks.report import machine, plain

LEAST_SECONDS = 15.0
"""With less time left no part is started."""
ERROR_LINES = 25
HALF = ("bfloat16", "float16")
GRAPHS = ("graphs", "no-graphs")
FLOAT8 = ("fp8_e4m3", "fp8_e5m2")
MEMORY_SHAPE = "llama-1B"
ALONE = ("memory",)
"""Parts that look at all of the device's memory: nothing else may run meanwhile."""


def wanted_parts(given: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The parts in the order of their worth, cheap ones before dear ones."""
    yield ("environment",)
    yield from checks(given.backends) if given.command == "check" else measurements(given.shapes, given.backends)


def checks(backends: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What must be right. FlashInfer has no float32, and compiles each kind of layer first: the rare ones last."""
    if "flashinfer" in backends:
        yield ("modules",)
    yield ("kernels",)
    yield ("coded",)
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
    """What is to be fast, and the ceilings beside it."""
    yield ("ceilings",)
    first, *others = backends
    yield from (("speed", shape, first) for shape in shapes)
    yield from ((part, shapes[-1], first) for part in ("step", "prefix"))
    yield ("draws",)
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
        yield ("coded_speed", shapes[-1])
        yield ("recurrent_speed",)
        yield ("moe",)


def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
    """Run one part in its own process; what it found, or why it found nothing."""
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
    """One line, and for throughput one more for each load."""
    if not outcome["ok"]:
        last = outcome.get("trace") or [""]
        return f"FAILED  {outcome['part']}: {outcome['error']} {last[-1]}"
    lines = [f"ok      {outcome['part']} ({outcome['seconds']} s)"]
    result = outcome["result"]
    if outcome["part"].startswith("memory "):
        lines += [f"        {line}" for line in memory_lines(result)]
    if outcome["part"].startswith("prompts "):
        lines += [f"        {name}: {prompts_line(one)}" for name, one in result.items()]
    if outcome["part"].startswith("adapter_steps "):
        lines += [f"        {batch} at once: {steps_line(one)}" for batch, one in result.items()]
    if outcome["part"] == "moe":
        lines += [f"        {name}: {tiles_line(one)}" for name, one in result.items()]
    for name, one in result.items() if isinstance(result, dict) else ():
        if isinstance(one, dict) and "output_rate" in one:
            step = (one["decode_step"]["p50"] or 0.0) * 1e3
            lines.append(
                f"        {name}: {one['output_rate']:,.0f} output tokens/s, decoding {one['decode_rate']:,.0f}, "
                f"prefill {one['prefill_rate']:,.0f}, step {step:.2f} ms, {one['failures']} failed"
            )
    return "\n".join(lines)


def prompts_line(found: dict[str, Any]) -> str:
    """What a step takes for each length, and how much of that without pieces."""
    return ", ".join(f"{length} tokens {one['pieces']:.2f} ms ({one['ratio']:.2f})" for length, one in found.items())


def steps_line(found: dict[str, float]) -> str:
    """What a step takes of each kind."""
    return ", ".join(f"{kind} {milliseconds:.2f} ms" for kind, milliseconds in found.items())


def memory_lines(found: dict[str, Any]) -> list[str]:
    """What the stages of a start took, and what was left."""
    stages = ", ".join(f"{name} {_gib(taken)}" for name, taken in found["stages"].items())
    return [
        f"GiB of {_gib(found['total'])}: {stages}",
        f"free after start {_gib(found['free_after_start'])}, after serving {_gib(found['free_after_serving'])}; "
        f"{found['tokens']:,} tokens in the pool, {found['captured']} graphs",
    ]


def tiles_line(found: dict[str, Any]) -> str:
    """How the sizes of the table compare with the fastest that were tried."""
    chosen, best = ("x".join(map(str, found[name].values())) for name in ("chosen", "best"))
    mine, theirs = found["chosen_seconds"], found["best_seconds"]
    failed = f", not run: {'; '.join(found['failed'])}" if found["failed"] else ""
    return (
        f"{chosen} {mine * 1e6:,.0f} us, best of {found['tried']} {best} {theirs * 1e6:,.0f} us "
        f"({mine / theirs:.2f} times as long){failed}"
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.2f}"


def run_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every part that the time budget has room for, ``given.jobs`` at once but for those in ``ALONE``."""
    deadline = time.monotonic() + given.budget
    given.out.mkdir(parents=True, exist_ok=True)
    parts = list(wanted_parts(given))
    outcomes: dict[int, dict[str, Any]] = {}
    broken: set[str] = set()

    def run(place: int) -> int:
        part = instead(parts[place], given.backends, broken)
        left = deadline - time.monotonic()
        if any(one["part"] == " ".join(part) for one in list(outcomes.values())):
            return place  # another backend's, in whose place this one was run already
        if left < LEAST_SECONDS:
            outcome: dict[str, Any] = {"part": " ".join(part), "ok": False, "error": "no time left", "seconds": 0.0}
        else:
            outcome = run_part(part, given.device, min(left, given.part_limit))
        if part[0] == "speed" and outcome.get("error", "").startswith("exit status"):
            broken.add(part[2])
        outcomes[place] = outcome
        return place

    def tell(place: int) -> None:
        if place in outcomes:
            print(summary(outcomes[place]), flush=True)
            write(given, [outcomes[one] for one in sorted(outcomes)])

    for alone, places in groupby(range(len(parts)), lambda place: parts[place][0] in ALONE):
        with ThreadPoolExecutor(1 if alone else given.jobs) as pool:
            for done in as_completed([pool.submit(run, place) for place in places]):
                tell(done.result())
    return [outcomes[place] for place in sorted(outcomes)]


def instead(part: tuple[str, ...], backends: Sequence[str], broken: Collection[str]) -> tuple[str, ...]:
    """``part`` with the first backend that works in the place of one that does not, if there is any."""
    works = next((one for one in backends if one not in broken), None)
    return part if works is None else tuple(works if one in broken else one for one in part)


def write(given: argparse.Namespace, outcomes: Sequence[dict[str, Any]]) -> None:
    """All that is known by now."""
    document = {"machine": machine(), "device": given.device, "parts": outcomes, "targets": reached(given, outcomes)}
    text = json.dumps(plain(document), indent=1)
    (given.out / f"gpu-{given.command}.json").write_text(text + "\n", encoding="utf-8")


def reached(given: argparse.Namespace, outcomes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For each attention backend, the targets that there are figures for."""
    found = {one["part"]: one["result"] for one in outcomes if one["ok"]}
    return {backend: targets(found, backend) for backend in given.backends} if given.command == "bench" else {}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
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
    return made


def main() -> int:
    """Run every part, or the one named; the exit status is 1 if a part failed."""
    given = arguments().parse_args()
    if given.command == "part":
        from benchmarks.gpu_parts import PARTS  # torch: only the children need it

        name, *rest = given.names
        found = json.dumps(plain(PARTS[name](given.device, *rest)), indent=1)
        if given.file:
            given.file.write_text(found, encoding="utf-8")
        else:
            print(found)
        return 0
    outcomes = run_all(given)
    for backend, rows in reached(given, outcomes).items():
        print(f"\n{backend}\n{show(rows)}")
    return 0 if all(outcome["ok"] for outcome in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
