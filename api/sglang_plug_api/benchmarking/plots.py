"""The plots of the reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .figures import METRICS, RequestResult
from .svg import Line, plot

MAX_POINTS = 200
"""Maximum number of points of a line, which the eye cannot tell from all of them."""
LEGEND = {
    "request_throughput": "all requests",
    "request_goodput": "goodput",
    "output_throughput": "output",
    "total_token_throughput": "with input",
}
"""Names of lines; those of times are their first word, such as ``p99``."""
INTERVALS = 60
"""Maximum number of intervals in which tokens are counted over the time of a benchmark."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of a report."""

    title: str
    svg: str


def request_plots(results: Sequence[RequestResult]) -> list[Plot]:
    """Return distributions of the times of requests, requests in flight and tokens per second over time."""
    answered = [result for result in results if not result.error]
    if not answered:
        return []
    plots = []
    for metric, title in METRICS.items():
        values = [gap for result in answered for gap in result.gaps()] if metric == "itl" else _times(answered, metric)
        if values:
            line = Line(metric.upper(), _distribution(values))
            plots.append(Plot(f"{title}: share of requests", plot([line], "milliseconds", "percent")))
    plots.append(Plot("Requests in flight", plot([Line("requests", _in_flight(results))], "seconds", "requests")))
    plots.append(Plot("Output token throughput", plot([Line("tokens", _tokens(answered))], "seconds", "tokens/s")))
    return plots


def sweep_plots(rows: Sequence[Mapping[str, Any]], variable: str, label: str, percents: Sequence[float]) -> list[Plot]:
    """Return throughput and times over what a sweep varied.

    Args:
        rows: the figures of each load; ``variable`` may be infinite, which is on no axis.
        variable: the key of what was varied.
        label: the same in words.
        percents: percentiles of times in the rows.
    """
    finite_rows = [row for row in rows if math.isfinite(float(row[variable]))]
    plots = [
        _sweep_plot(
            "Throughput", finite_rows, variable, label, "requests/s", ("request_throughput", "request_goodput")
        ),
        _sweep_plot(
            "Token throughput",
            finite_rows,
            variable,
            label,
            "tokens/s",
            ("output_throughput", "total_token_throughput"),
        ),
    ]
    for metric, title in METRICS.items():
        names = [f"median_{metric}_ms", *(f"p{percent:g}_{metric}_ms" for percent in percents)]
        plots.append(_sweep_plot(title, finite_rows, variable, label, "milliseconds", names))
    slow = f"p{max(percents):g}_e2el_ms"
    points = [(row["output_throughput"], row[slow]) for row in rows if row[slow] is not None]
    if points:
        svg = plot([Line(slow.partition("_")[0].upper(), points)], "output tokens/s", "milliseconds", markers=True)
        plots.append(Plot("End-to-end latency over throughput", svg))
    return [item for item in plots if item.svg]


def iteration_plots(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """Return the latency of each iteration of ``bench latency``."""
    return [
        Plot(
            f"Batch of {row['batch_size']}: {row['input_len']} tokens in, {row['output_len']} out",
            plot([Line("latency", list(enumerate(row["latencies"], 1)))], "iteration", "seconds", markers=True),
        )
        for row in rows
    ]


def _sweep_plot(
    title: str, rows: Sequence[Mapping[str, Any]], variable: str, label: str, unit: str, names: Iterable[str]
) -> Plot:
    lines = []
    for name in names:
        points = [(float(row[variable]), row[name]) for row in rows if row[name] is not None]
        if points:
            lines.append(Line(LEGEND.get(name) or name.partition("_")[0], points))
    return Plot(title, plot(lines, label, unit, markers=True) if lines else "")


def _times(results: Sequence[RequestResult], metric: str) -> list[float]:
    return [value for result in results if not math.isnan(value := result.milliseconds(metric))]


def _distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return points (value, percent of the values that are not larger)."""
    ordered = sorted(values)
    last = len(ordered) - 1
    steps = min(last, MAX_POINTS) or 1
    indices = [round(step * last / steps) for step in range(steps + 1)]
    return [(ordered[index], 100 * (index + 1) / len(ordered)) for index in indices]


def _in_flight(results: Sequence[RequestResult]) -> list[tuple[float, float]]:
    changes = sorted([(result.sent, 1) for result in results] + [(result.finished, -1) for result in results])
    points, count = [(0.0, 0.0)], 0
    for time, change in changes:
        count += change
        points.append((time, float(count)))
    stride = math.ceil(len(points) / (4 * MAX_POINTS))
    return points[::stride]


def _tokens(results: Sequence[RequestResult]) -> list[tuple[float, float]]:
    """Return tokens per second in equal intervals; a request's tokens are spread evenly over its arrivals."""
    end = max(result.finished for result in results) or 1.0
    counts = [0.0] * INTERVALS
    for result in results:
        for arrival in result.arrivals:
            interval = min(INTERVALS - 1, int(arrival / end * INTERVALS))
            counts[interval] += result.output_tokens / len(result.arrivals)
    width = end / INTERVALS
    return [((interval + 0.5) * width, count / width) for interval, count in enumerate(counts)]
