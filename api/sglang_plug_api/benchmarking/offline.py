"""``sglang-plug bench latency`` and ``throughput``: a model in this process, or one on a server."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sglang_plug import Plugins
from sglang_plug_api.options.parsing import add_arguments

from .arguments import (
    data_arguments,
    not_negative,
    output_arguments,
    pairs,
    positive,
    request_arguments,
    sampling_arguments,
)

if TYPE_CHECKING:
    from .targets import Target

FAILED = 1
LATENCY_PERCENTS = (10, 25, 50, 75, 90, 99)
"""Percentiles that ``vllm bench latency`` reports."""


class LatencyAction:
    """Measures how long a batch of requests takes, as ``vllm bench latency`` and SGLang's ``bench_one_batch`` do."""

    summary = "time of one batch: a model in this process, or on a server"

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the batch, the model and results."""
        group = parser.add_argument_group("batch", "Each may have several values; all combinations are measured.")
        for flag, default, text in (
            ("--batch-size", 8, "requests that are sent together"),
            ("--input-len", 32, "tokens of each prompt, which are random"),
            ("--output-len", 128, "tokens to generate for each"),
        ):
            group.add_argument(
                flag, type=positive, nargs="+", default=[default], metavar="N", help=f"{text}; default: {default}"
            )
        group.add_argument("--num-iters", type=positive, default=30, metavar="N", help="batches; default: 30")
        group.add_argument(
            "--num-iters-warmup", type=not_negative, default=10, metavar="N", help="batches before those; default: 10"
        )
        group.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts; default: 0")
        _target_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure and print; return 1 if a request failed."""
        from .html_report import write_report  # nothing of it is needed for --help
        from .plots import iteration_plots
        from .results import check_outputs, write_json
        from .targets import open_target

        check_outputs(options)
        rows, lines = [], []
        with open_target(options, plugins) as target:
            shapes = itertools.product(options.batch_size, options.input_len, options.output_len)
            for number, (batch_size, input_len, output_len) in enumerate(shapes):
                shape = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
                seconds, prefill, errors = _iterations(options, target, shape, number)
                if errors:
                    print("\n".join(f"failed: {error}" for error in errors))
                    return FAILED
                rows.append({**shape, **latency_figures(shape, seconds, prefill)})
                lines.append(latency_text(rows[-1]))
                print(lines[-1], flush=True)
            settings = _settings(options, target)
        if options.output_file is not None:
            write_json(options.output_file, {**settings, **(rows[0] if len(rows) == 1 else {"rows": rows})})
        if options.html is not None:
            write_report(
                options.html, f"Latency of {target.model}", settings, "\n\n".join(lines), iteration_plots(rows)
            )
        return 0


class ThroughputAction:
    """Measures how fast many requests are answered, as ``vllm bench throughput`` does."""

    summary = "requests and tokens per second: a model in this process, or on a server"

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the requests, the model and results."""
        data_arguments(parser, prompts=1000)
        group = parser.add_argument_group("traffic")
        group.add_argument(
            "--max-concurrency", type=positive, metavar="N", help="maximum number of requests in flight; default: all"
        )
        group.add_argument(
            "--num-warmups",
            type=not_negative,
            default=1,
            metavar="N",
            help="requests before the measured ones; default: 1",
        )
        _target_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure and print; return 1 if a request failed."""
        from .html_report import write_report  # nothing of it is needed for --help
        from .plots import request_plots
        from .prompts import prompts_of
        from .results import check_outputs, write_json
        from .targets import Progress, open_target

        check_outputs(options)
        with open_target(options, plugins) as target:
            prompts = prompts_of(options, plugins, target.vocabulary)
            target.run(prompts[: options.num_warmups], lambda: None)
            with Progress(len(prompts), options) as progress:
                results, seconds = target.run(prompts, progress.step)
            settings = {**_settings(options, target), "dataset_name": options.dataset_name}
        good = [result for result in results if not result.error]
        inputs, outputs = (sum(getattr(result, f"{side}_tokens") for result in good) for side in ("prompt", "output"))
        measured = {
            "elapsed_time": seconds,
            "num_requests": len(good),
            "failed": len(results) - len(good),
            "errors": sorted({result.error for result in results if result.error})[:5],
            "total_input_tokens": inputs,
            "total_output_tokens": outputs,
            "total_num_tokens": inputs + outputs,
            "requests_per_second": len(good) / seconds,
            "tokens_per_second": (inputs + outputs) / seconds,
            "output_tokens_per_second": outputs / seconds,
        }
        text = throughput_text(measured)
        print(text)
        if options.output_file is not None:
            write_json(options.output_file, {**settings, **measured})
        if options.html is not None:
            write_report(options.html, f"Throughput of {target.model}", settings, text, request_plots(results))
        return FAILED if measured["failed"] else 0


def latency_figures(shape: Mapping[str, int], seconds: Sequence[float], prefill: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a batch's iterations, under the names of ``vllm bench latency``.

    Args:
        shape: size of the batch, and lengths.
        seconds: time of each iteration.
        prefill: time of each iteration that generated one token for each prompt.
    """
    from .figures import percentile

    first, total = statistics.median(prefill), statistics.median(seconds)
    steps = shape["output_len"] - 1
    decode = max(0.0, total - first) / steps if steps else None
    return {
        "avg_latency": statistics.fmean(seconds),
        "std_latency": statistics.pstdev(seconds),
        "latencies": list(seconds),
        "percentiles": {str(percent): percentile(seconds, percent) for percent in LATENCY_PERCENTS},
        "median_prefill_latency": first,
        "prefill_throughput": shape["batch_size"] * shape["input_len"] / first,
        "median_decode_latency": decode,
        "decode_throughput": shape["batch_size"] / decode if decode else None,
        "overall_throughput": shape["batch_size"] * (shape["input_len"] + shape["output_len"]) / total,
    }


def latency_text(row: Mapping[str, Any]) -> str:
    """Return the figures of ``latency_figures`` as text."""
    lines = [
        f"Batch size {row['batch_size']}, {row['input_len']} tokens in, {row['output_len']} tokens out",
        f"Avg latency: {row['avg_latency']:.6f} seconds",
        f"Std latency: {row['std_latency']:.6f} seconds",
        *(f"{percent}% percentile latency: {value:.6f} seconds" for percent, value in row["percentiles"].items()),
        f"Prefill: {row['median_prefill_latency']:.6f} seconds, {row['prefill_throughput']:.2f} token/s",
    ]
    if row["decode_throughput"] is not None:
        lines.append(f"Decode: {row['median_decode_latency']:.6f} seconds/step, {row['decode_throughput']:.2f} token/s")
    return "\n".join([*lines, f"Total: {row['overall_throughput']:.2f} token/s"])


def throughput_text(measured: Mapping[str, Any]) -> str:
    """Return the figures of ``bench throughput`` as text."""
    rates = [f"{measured[f'{name}_per_second']:.2f}" for name in ("requests", "tokens", "output_tokens")]
    lines = [
        f"Throughput: {rates[0]} requests/s, {rates[1]} total tokens/s, {rates[2]} output tokens/s",
        f"Time: {measured['elapsed_time']:.2f} seconds for {measured['num_requests']} requests",
        f"Total num prompt tokens:  {measured['total_input_tokens']}",
        f"Total num output tokens:  {measured['total_output_tokens']}",
    ]
    if measured["failed"]:
        lines.append(f"Failed requests: {measured['failed']}")
    return "\n".join([*lines, *(f"failed: {error}" for error in measured["errors"])])


def _target_arguments(parser: argparse.ArgumentParser, plugins: Plugins) -> None:
    sampling_arguments(parser)
    output_arguments(parser.add_argument_group("results"))
    group = parser.add_argument_group("model on a server")
    group.add_argument("--url", help="address of a server; without it, the model runs in this process")
    group.add_argument("--model-name", metavar="NAME", help="model to ask for; default: the server's first")
    request_arguments(group)
    add_arguments(parser, plugins)


def _iterations(
    options: argparse.Namespace, target: Target, shape: Mapping[str, int], number: int
) -> tuple[list[float], list[float], list[str]]:
    """Return the seconds of each batch, those of each batch with one token of output, and errors.

    Each batch has new prompts: those of an earlier one are in the prefix cache.
    """
    from .prompts import random_prompts
    from .targets import Progress

    seconds: list[float] = []
    prefill: list[float] = []
    batches = options.num_iters_warmup + options.num_iters
    with Progress(batches, options, "batches") as progress:
        for index in range(batches):
            for times, length in ((seconds, shape["output_len"]), (prefill, 1)):
                prompts = random_prompts(
                    shape["batch_size"],
                    shape["input_len"],
                    length,
                    0.0,
                    vocabulary=target.vocabulary,
                    seed=hash((options.seed, number, index, length)),
                )
                results, elapsed = target.run(prompts, lambda: None)
                if errors := sorted({result.error for result in results if result.error}):
                    return seconds, prefill, errors
                if index >= options.num_iters_warmup:
                    times.append(elapsed)
            progress.step()
    return seconds, prefill, []


def _settings(options: argparse.Namespace, target: Target) -> dict[str, Any]:
    names = ("num_prompts", "num_iters", "num_iters_warmup", "max_concurrency", "ignore_eos", "seed", "url")
    known = {name: value for name in names if (value := vars(options).get(name)) is not None}
    date = time.strftime("%Y-%m-%d %H:%M:%S")
    return {**pairs(options.metadata, "--metadata"), "date": date, "model_id": target.model, **known}
