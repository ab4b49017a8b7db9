"""Host memory of a ready server: ``python -m benchmarks.host_memory --shape 0.5B``.

Weights are random numbers. Anonymous memory is what the processes have for themselves: it does not count the files that
they map, which the system can drop and read again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.models import SHAPES
from benchmarks.common.server import descendants, serving

GIGABYTE = 1e9
OPTIONS = ("--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "bfloat16", "--max-total-tokens", "8192")


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Start a server, print its memory as a table, and stop it."""
    parser = argparse.ArgumentParser(description="The host memory of a server that is ready.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.5B", help="the model's dimensions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.add_argument("options", nargs="*", help="more options for the server, behind --")
    args = parser.parse_args(arguments)
    shape = SHAPES[args.shape]
    with tempfile.TemporaryDirectory(prefix="host-memory-") as folder:
        model = Path(folder, "model")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(shape.config()), encoding="utf-8")
        command = ("--model-path", str(model), *OPTIONS, *args.options)
        with serving(command, log=Path(folder, "server.log")) as server:
            resident = server.memory
            anonymous = sum(anonymous_bytes(pid) for pid in descendants(server.pid))
    weights = 2 * (shape.layers * shape.layer_weights + (1 if shape.tied else 2) * shape.head_weights)
    figures = {"weights": weights, "anonymous": anonymous, "resident": resident}
    for name, size in figures.items():
        print(f"{name:<10} {size / GIGABYTE:6.2f} GB")
    if args.json is not None:
        args.json.write_text(json.dumps({"shape": shape.name, **figures}), encoding="utf-8")


if __name__ == "__main__":
    main()
