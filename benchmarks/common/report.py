"""Arithmetic, tables and JSON shared by all benchmarks. No torch: the load generator imports this."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of ``values`` lie, with linear interpolation; NaN if empty.

    Raises ``ValueError`` if ``share`` is outside [0, 1].
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a percentile's share must be in [0, 1], got {share}")
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def ratio(measured: float, limit: float) -> float:
    """Return ``measured / limit``; NaN if the limit is zero or unknown."""
    return measured / limit if limit else math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of times or rates in the unit of the values; all NaN for no values."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    best: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Summarise ``values``; ``best`` is the smallest."""
        result = list(values)
        if not result:
            return cls(0, math.nan, math.nan, math.nan, math.nan, math.nan)
        p50, p95, p99 = (percentile(result, share) for share in (0.5, 0.95, 0.99))
        return cls(len(result), statistics.fmean(result), p50, p95, p99, min(result))


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format aligned columns: the first one left, the others right; numbers with four significant digits."""
    cells = [[str(item) for item in header], *([_cell(item) for item in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        first, *others = (
            cell.ljust(width) if not index else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    """Describe the environment of a figure: processor, cores, memory, versions, date."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def plain(value: Any) -> Any:
    """Convert ``value`` to JSON data: dataclasses become objects, NaN and infinity become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_json(file: Path | None, result: Any) -> None:
    """Write ``result`` with a description of the machine to ``file``; do nothing without a file."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), "result": plain(result)}, indent=2, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Build a parser with the options of every benchmark."""
    parser_ = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser_.add_argument("--json", type=Path, metavar="FILE", help="write the result there as JSON")
    return parser_
