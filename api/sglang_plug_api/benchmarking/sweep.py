"""``sglang-plug bench sweep``: measures a running server under several loads, one after the other."""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from sglang_plug import ConfigError, Plugins

from .arguments import (
    data_arguments,
    metric_arguments,
    metric_names,
    not_negative,
    output_arguments,
    percentiles,
    positive,
    rate,
    sampling_arguments,
    server_arguments,
)

if TYPE_CHECKING:
    from .load import Load
    from .targets import ServerTarget

FAILED = 1
LABELS = {"request_rate": "Requests per second sent", "max_concurrency": "Maximum number of requests in flight"}


class SweepAction:
    """Measures one server under a list of request rates, or of concurrencies."""

    summary = "a running server under several request rates or concurrencies"

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add server, requests, the loads and results."""
        server_arguments(parser)
        data_arguments(parser, prompts=100)
        sampling_arguments(parser)
        group = parser.add_argument_group("traffic", "One of --request-rate and --max-concurrency has several values.")
        group.add_argument(
            "--request-rate",
            type=rate,
            nargs="+",
            default=[math.inf],
            metavar="NUMBER",
            help="mean requests per second, several values; default: inf",
        )
        group.add_argument("--burstiness", type=rate, default=1.0, metavar="NUMBER", help="1: Poisson; smaller: bursts")
        group.add_argument(
            "--max-concurrency", type=positive, nargs="+", metavar="N", help="maximum number of requests in flight"
        )
        group.add_argument(
            "--num-warmups", type=not_negative, default=0, metavar="N", help="requests before the measured ones"
        )
        results = metric_arguments(parser, default_metrics=("ttft", "tpot"))
        results.add_argument(
            "--stop-below",
            type=float,
            default=0.9,
            metavar="SHARE",
            help="with --goodput: stop after the first load of which a smaller share of the requests is within the "
            "limits; 0 never stops; default: 0.9",
        )
        output_arguments(results)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure each load and print a row; return 1 if a request failed."""
        from .figures import parse_objectives  # nothing of it is needed for --help
        from .html_report import write_report
        from .plots import sweep_plots
        from .results import check_outputs, load_settings, write_json
        from .targets import ServerTarget, load_of

        objectives, percents = parse_objectives(options.goodput), percentiles(options.metric_percentiles)
        columns = Columns(_swept(options), percents, metric_names(options.percentile_metrics), bool(objectives))
        check_outputs(options)
        target = ServerTarget(load_of(argparse.Namespace(**{**vars(options), "max_concurrency": None})))
        rows, lines = [], [columns.line(columns.names())]
        print(lines[0], flush=True)
        for load in _loads(options, target.load):
            rows.append({columns.swept: getattr(load, columns.swept), **_measure(options, plugins, target, load)})
            lines.append(columns.row(rows[-1]))
            print(lines[-1], flush=True)
            if objectives and (share := good_share(rows[-1])) < options.stop_below:
                lines.append(f"stopped: {share:.0%} of the requests are within the limits of --goodput")
                print(lines[-1])
                break
        for error in sorted({error for row in rows for error in row["errors"]}):
            print(f"failed: {error}")
        settings = {**load_settings(options, target.load, objectives), "swept": columns.swept}
        for name in ("request_rate", "max_concurrency"):
            settings[name] = [_plain(value) for value in getattr(options, name) or ()]
        if options.output_file is not None:
            plain = [{**row, columns.swept: _plain(row[columns.swept])} for row in rows]
            write_json(options.output_file, {**settings, "rows": plain})
        if options.html is not None:
            plots = sweep_plots(rows, columns.swept, LABELS[columns.swept], percents)
            write_report(options.html, f"{target.model} under rising load", settings, "\n".join(lines), plots)
        return FAILED if any(row["failed"] for row in rows) else 0


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the table: the load, throughput, and times in milliseconds."""

    swept: str
    percents: Sequence[float]
    metrics: Sequence[str]
    has_goodput: bool

    def names(self) -> list[str]:
        """Return the names of the columns."""
        load = "req/s sent" if self.swept == "request_rate" else "in flight"
        names = [load, "completed", "failed", "req/s", "output tok/s", *(["within limits"] * self.has_goodput)]
        return [*names, *(f"{metric.upper()} {name}" for metric in self.metrics for name in self._times())]

    def row(self, row: Mapping[str, Any]) -> str:
        """Return the figures of a load."""
        numbers = [row["request_throughput"], row["output_throughput"]]
        cells = [f"{row[self.swept]:g}", str(row["completed"]), str(row["failed"]), *map(_number, numbers)]
        if self.has_goodput:
            cells.append(f"{good_share(row):.0%}")
        keys = [f"{name}_{metric}_ms" for metric in self.metrics for name in self._times()]
        return self.line([*cells, *(_number(row[key]) for key in keys)])

    def _times(self) -> list[str]:
        return ["median", *(f"p{percent:g}" for percent in self.percents)]

    def line(self, cells: Sequence[str]) -> str:
        """Return cells under the names of their columns."""
        return "  ".join(cell.rjust(max(9, len(name))) for cell, name in zip(cells, self.names(), strict=True))


def good_share(row: Mapping[str, Any]) -> float:
    """Return the share of all requests of a load that were within the limits of ``--goodput``."""
    return float(row["request_goodput"] * row["duration"] / (row["completed"] + row["failed"]))


def _swept(options: argparse.Namespace) -> str:
    """Return which of the two has several values. Raises ``ConfigError`` if both have."""
    several = [name for name in LABELS if len(getattr(options, name) or ()) > 1]
    if len(several) > 1:
        raise ConfigError("give several values to --request-rate or to --max-concurrency, not to both")
    return several[0] if several else ("max_concurrency" if options.max_concurrency else "request_rate")


def _loads(options: argparse.Namespace, load: Load) -> Iterator[Load]:
    """Yield the loads, each with a seed of its own: a prompt that is sent again would be in the prefix cache."""
    combinations = product(options.request_rate, options.max_concurrency or (None,))
    for index, (request_rate, concurrency) in enumerate(combinations):
        yield replace(
            load,
            request_rate=request_rate,
            burstiness=options.burstiness,
            max_concurrency=concurrency,
            seed=options.seed + index,
        )


def _measure(options: argparse.Namespace, plugins: Plugins, target: ServerTarget, load: Load) -> dict[str, Any]:
    from .figures import figures, parse_objectives
    from .load import send_all
    from .prompts import prompts_of
    from .targets import Progress

    seeded = argparse.Namespace(**{**vars(options), "seed": load.seed})
    prompts = prompts_of(seeded, plugins, target.vocabulary)
    asyncio.run(send_all(load, prompts[:1] * options.num_warmups, lambda: None))
    with Progress(len(prompts), options) as progress:
        results, seconds = asyncio.run(send_all(load, prompts, progress.step))
    return figures(results, seconds, percentiles(options.metric_percentiles), parse_objectives(options.goodput))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
