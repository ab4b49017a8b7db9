"""``sglang-plug bench serve``: sends requests to a running server as ``vllm bench serve`` does."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from sglang_plug import Plugins

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

FAILED = 1


class ServeAction:
    """Measures one server under one load."""

    summary = "throughput and latency of a running server"

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add server, requests, traffic and results."""
        server_arguments(parser)
        data_arguments(parser, prompts=100)
        sampling_arguments(parser)
        group = parser.add_argument_group("traffic")
        group.add_argument(
            "--request-rate",
            type=rate,
            default=math.inf,
            metavar="NUMBER",
            help="mean requests per second; default: inf, all at once",
        )
        group.add_argument("--burstiness", type=rate, default=1.0, metavar="NUMBER", help="1: Poisson; smaller: bursts")
        group.add_argument("--max-concurrency", type=positive, metavar="N", help="maximum number of requests in flight")
        group.add_argument(
            "--num-warmups", type=not_negative, default=0, metavar="N", help="requests before the measured ones"
        )
        results = metric_arguments(parser)
        output_arguments(results)
        results.add_argument(
            "--save-result", action="store_true", help="write the figures to a file whose name is generated"
        )
        results.add_argument("--save-detailed", action="store_true", help="write the times of each request as well")
        results.add_argument("--result-dir", type=Path, metavar="FOLDER", help="folder of that file; default: this one")
        results.add_argument("--result-filename", metavar="NAME", help="name of that file")
        results.add_argument("--label", metavar="TEXT", help="start of the file's name; default: that of --backend")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure and print; return 1 if a request failed."""
        from .figures import figures, parse_objectives, table  # nothing of it is needed for --help
        from .html_report import write_report
        from .plots import request_plots
        from .prompts import prompts_of
        from .results import check_outputs, details, load_settings, write_results
        from .targets import Progress, ServerTarget, load_of

        objectives, percents = parse_objectives(options.goodput), percentiles(options.metric_percentiles)
        metrics = metric_names(options.percentile_metrics)
        check_outputs(options)
        load = replace(load_of(options), request_rate=options.request_rate, burstiness=options.burstiness)
        target = ServerTarget(load)
        prompts = prompts_of(options, plugins, target.vocabulary)
        target.run(prompts[:1] * options.num_warmups, lambda: None)
        with Progress(len(prompts), options) as progress:
            results, seconds = target.run(prompts, progress.step)
        measured = figures(results, seconds, percents, objectives)
        text = table(measured, percents, metrics)
        print(text)
        settings = load_settings(options, target.load, objectives)
        write_results(
            options, target.load, {**settings, **measured, **(details(results) if options.save_detailed else {})}
        )
        if options.html is not None:
            write_report(options.html, f"{target.load.model} under load", settings, text, request_plots(results))
        return FAILED if measured["failed"] else 0
