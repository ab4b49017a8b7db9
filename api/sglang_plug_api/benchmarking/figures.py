"""The result of one request, and the figures of many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_plug import ConfigError

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
"""The measured times under the names that ``vllm bench serve`` gives them."""
OBJECTIVES = ("ttft", "tpot", "e2el")
"""Times that a service level objective may limit: one per request."""


@dataclass(slots=True, kw_only=True)
class RequestResult:
    """One request. Times are seconds since the start of the benchmark."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """The time of each event with new text."""
    finished: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    def milliseconds(self, metric: str) -> float:
        """Return one of the metrics that a request has once, in milliseconds; NaN if it has no such time."""
        if not self.arrivals:
            return math.nan
        first, last = self.arrivals[0], self.arrivals[-1]
        if metric == "ttft":
            return (first - self.sent) * 1e3
        if metric == "e2el":
            return (last - self.sent) * 1e3
        return (last - first) * 1e3 / (self.output_tokens - 1) if self.output_tokens > 1 else math.nan

    def gaps(self) -> list[float]:
        """Return the milliseconds between events with text."""
        return [(later - earlier) * 1e3 for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]

    def meets(self, objectives: Mapping[str, float]) -> bool:
        """Return whether no time of a successful request exceeds its objective in milliseconds."""
        return not self.error and not any(self.milliseconds(name) > limit for name, limit in objectives.items())


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Return the limits in milliseconds of ``ttft:500 tpot:50``. Raises ``ConfigError``."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if name not in OBJECTIVES or not limit > 0:
            raise ConfigError(f"--goodput {text!r} is not NAME:MILLISECONDS with a NAME of {', '.join(OBJECTIVES)}")
        limits[name] = limit
    return limits


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the value below which ``percent`` of the values lie, interpolated linearly; NaN if there are none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = percent / 100 * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def figures(
    results: Sequence[RequestResult], seconds: float, percents: Sequence[float], objectives: Mapping[str, float]
) -> dict[str, Any]:
    """Return the figures under the names of ``vllm bench serve``; times are in milliseconds, unknown ones ``None``."""
    good = [result for result in results if not result.error]
    prompt, output = sum(result.prompt_tokens for result in good), sum(result.output_tokens for result in good)
    rate = 1 / seconds if seconds else 0.0
    measured: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(results) - len(good),
        "errors": sorted({result.error for result in results if result.error})[:5],
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) * rate,
        "output_throughput": output * rate,
        "total_token_throughput": (prompt + output) * rate,
        "request_goodput": sum(result.meets(objectives) for result in good) * rate if objectives else None,
    }
    for metric in METRICS:
        values = (
            [gap for result in good for gap in result.gaps()]
            if metric == "itl"
            else [value for result in good if not math.isnan(value := result.milliseconds(metric))]
        )
        measured[f"mean_{metric}_ms"] = statistics.fmean(values) if values else None
        measured[f"std_{metric}_ms"] = statistics.pstdev(values) if values else None
        measured[f"median_{metric}_ms"] = statistics.median(values) if values else None
        for percent in percents:
            measured[f"p{percent:g}_{metric}_ms"] = percentile(values, percent) if values else None
    return measured


def table(measured: Mapping[str, Any], percents: Sequence[float], metrics: Sequence[str] = tuple(METRICS)) -> str:
    """Return the figures as text, one per line; of the times, those of ``metrics``."""
    rows: list[tuple[str, Any]] = [
        ("Successful requests", measured["completed"]),
        ("Failed requests", measured["failed"]),
        ("Benchmark duration (s)", measured["duration"]),
        ("Total input tokens", measured["total_input_tokens"]),
        ("Total generated tokens", measured["total_output_tokens"]),
        ("Request throughput (req/s)", measured["request_throughput"]),
    ]
    if measured["request_goodput"] is not None:
        rows.append(("Request goodput (req/s)", measured["request_goodput"]))
    rows.append(("Output token throughput (tok/s)", measured["output_throughput"]))
    rows.append(("Total token throughput (tok/s)", measured["total_token_throughput"]))
    lines = [" Serving Benchmark Result ".center(60, "="), *map(_row, rows)]
    for metric in metrics:
        lines.append(METRICS[metric].center(60, "-"))
        for name in ("mean", "median", *(f"p{percent:g}" for percent in percents)):
            label = name.capitalize() if not name.startswith("p") else name.upper()
            lines.append(_row((f"{label} {metric.upper()} (ms)", measured[f"{name}_{metric}_ms"])))
    return "\n".join([*lines, "=" * 60, *(f"failed: {error}" for error in measured["errors"])])


def _row(row: tuple[str, Any]) -> str:
    name, value = row
    text = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name + ':':<44}{text:>16}"
