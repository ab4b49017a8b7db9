"""One command for a CUDA machine: is it right there, and how fast is it?

Run as ``python -m benchmarks.gpu --out FOLDER``. Checks every attention backend (conformance kit, and greedy tokens of
a tiny model against transformers in float32), probes the machine, and measures throughput of Llama-shaped models with
random weights. Needs no network. Each part runs in a process of its own, so that neither an error nor a hang nor a
broken CUDA context hides the others; ``FOLDER/gpu.json`` is rewritten after every part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import machine, plain

LEAST_SECONDS = 15.0
"""With less time left no part is started."""
ERROR_LINES = 25


def wanted_parts(given: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """The parts in the order of their worth: what is right first, then what is fast, cheap ones before dear ones."""
    yield ("environment",)
    yield ("limits",)
    for backend in given.backends:
        dtypes = ("bfloat16", "float16") if backend == "flashinfer" else ("float32", "bfloat16")
        yield from (("conformance", backend, dtype) for dtype in dtypes)
        if backend != "flashinfer":  # it has no float32
            yield ("parity", backend)
    for shape in given.shapes:
        yield from (("speed", shape, backend) for backend in given.backends)


def run_part(part: tuple[str, ...], device: str, seconds: float) -> dict[str, Any]:
    """Run one part in its own process; what it found, or why it found nothing."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu",
            "--device",
            device,
            "--part-file",
            str(file),
            "--part",
            *part,
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
    for name, one in result.items() if isinstance(result, dict) else ():
        if isinstance(one, dict) and "output_rate" in one:
            step = (one["decode_step"]["p50"] or 0.0) * 1e3
            lines.append(
                f"        {name}: {one['output_rate']:,.0f} output tokens/s, decoding {one['decode_rate']:,.0f}, "
                f"prefill {one['prefill_rate']:,.0f}, step {step:.2f} ms, {one['failures']} failed"
            )
    return "\n".join(lines)


def run_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every part that the time budget has room for."""
    deadline = time.monotonic() + given.budget
    given.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[dict[str, Any]] = []
    for part in wanted_parts(given):
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS:
            outcomes.append({"part": " ".join(part), "ok": False, "error": "no time left", "seconds": 0.0})
        else:
            outcomes.append(run_part(part, given.device, min(left, given.part_limit)))
        print(summary(outcomes[-1]), flush=True)
        text = json.dumps({"machine": machine(), "device": given.device, "parts": outcomes}, indent=1)
        (given.out / "gpu.json").write_text(text + "\n", encoding="utf-8")
    return outcomes


def main() -> int:
    """Run every part, or the one named; the exit status is 1 if a part failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder for gpu.json")
    options.add_argument("--device", default="cuda")
    options.add_argument("--backends", nargs="+", default=["torch", "triton", "flashinfer"])
    options.add_argument(
        "--shapes", nargs="+", default=["llama-1B", "llama-8B"], choices=["tiny", "llama-1B", "llama-8B"]
    )
    options.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    options.add_argument("--part-limit", type=float, default=180.0, help="seconds for one part")
    options.add_argument("--part", nargs="+", metavar="NAME", help="run this part alone, here (used internally)")
    options.add_argument("--part-file", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.part:
        from benchmarks.gpu_parts import PARTS  # torch: only the children need it

        name, *rest = given.part
        found = json.dumps(plain(PARTS[name](given.device, *rest)), indent=1)
        if given.part_file:
            given.part_file.write_text(found, encoding="utf-8")
        else:
            print(found)
        return 0
    return 0 if all(outcome["ok"] for outcome in run_all(given)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
