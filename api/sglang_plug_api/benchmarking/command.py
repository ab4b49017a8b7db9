"""``sglang-plug bench serve``: measures a running server, with the flags of ``vllm bench serve``."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_plug import ConfigError, Plugins

if TYPE_CHECKING:
    from .load import Load
    from .prompts import Prompt

FAILED = 1
KEY_VARIABLE = "OPENAI_API_KEY"
VOCABULARY = 8000
"""Token ids of random prompts for servers that do not tell the size of their vocabulary."""
CONNECT_SECONDS = 10.0


class BenchCommand:
    """The command with its action ``serve``."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add one subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        serve = actions.add_parser("serve", help="throughput and latency of a running server")
        _server_arguments(serve)
        _data_arguments(serve)
        _traffic_arguments(serve)
        _output_arguments(serve)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure and print; return 1 if a request failed."""
        from .figures import figures, parse_objectives, table  # nothing of it is needed for --help
        from .load import send_all

        objectives = parse_objectives(options.goodput)
        percents = _percents(options.metric_percentiles)
        load, vocabulary = _load(options)
        prompts = _prompts(options, vocabulary)
        if options.num_warmups:
            asyncio.run(send_all(load, prompts[:1] * options.num_warmups, lambda: None))
        progress = _Progress(len(prompts), shown=sys.stderr.isatty() and not options.disable_tqdm)
        results, seconds = asyncio.run(send_all(load, prompts, progress.step))
        progress.end()
        found = figures(results, seconds, percents, objectives)
        print(table(found, percents))
        if options.output_file is not None:
            _write(options.output_file, load, objectives, found)
        return FAILED if found["failed"] else 0


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", help="address of the server; default: http://HOST:PORT")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=int, default=30000, metavar="N", help="default: 30000")
    group.add_argument("--model", metavar="NAME", help="model to ask for; default: the server's first")
    group.add_argument("--api-key", metavar="TOKEN", help=f"bearer token; default: ${KEY_VARIABLE}")
    group.add_argument(
        "--backend",
        choices=("openai", "openai-chat", "sglang"),
        default="openai",
        help="API: /v1/completions, /v1/chat/completions or /generate; default: openai",
    )


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset-name", choices=("random", "sharegpt"), default="random", help="default: random")
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="JSON file of conversations, for sharegpt")
    group.add_argument("--num-prompts", type=_positive, default=100, metavar="N", help="requests; default: 100")
    group.add_argument("--random-input-len", type=_positive, default=1024, metavar="N", help="default: 1024")
    group.add_argument("--random-output-len", type=_positive, default=128, metavar="N", help="default: 128")
    group.add_argument(
        "--random-range-ratio", type=_share, default=0.0, metavar="SHARE", help="lengths vary by this share; default: 0"
    )
    group.add_argument("--sharegpt-output-len", type=_positive, metavar="N", help="tokens instead of the recorded ones")
    group.add_argument("--temperature", type=float, default=0.0, metavar="NUMBER", help="default: 0")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate as many tokens as wanted; default: yes; --no-ignore-eos for servers that refuse it",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals; default: 0")
    group.add_argument("--num-warmups", type=int, default=0, metavar="N", help="requests before the measured ones")


def _traffic_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    group.add_argument(
        "--request-rate", type=_rate, default=math.inf, metavar="NUMBER", help="mean per second; default: all at once"
    )
    group.add_argument("--burstiness", type=_rate, default=1.0, metavar="NUMBER", help="1: Poisson; smaller: bursts")
    group.add_argument("--max-concurrency", type=_positive, metavar="N", help="most requests in flight")


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("results")
    group.add_argument("--metric-percentiles", default="99", metavar="P,…", help="percentiles shown; default: 99")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests within these limits: ttft:500 tpot:50 e2el:2000",
    )
    group.add_argument("--output-file", type=Path, metavar="FILE", help="write the figures there as JSON")
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def _load(options: argparse.Namespace) -> tuple[Load, int]:
    """Return the parameters of the requests, and the number of token ids for random prompts."""
    import httpx

    from .load import Load

    url = (options.base_url or f"http://{options.host}:{options.port}").rstrip("/").removesuffix("/v1")
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=CONNECT_SECONDS) as client:
            listed = client.get("/v1/models")
            listed.raise_for_status()
            model = options.model or str(listed.json()["data"][0]["id"])
            info = client.get("/server_info")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"no model is listed at {url}/v1/models: {error}") from error
    load = Load(
        base_url=url,
        api=options.backend,
        model=model,
        api_key=key,
        request_rate=options.request_rate,
        burstiness=options.burstiness,
        max_concurrency=options.max_concurrency,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        seed=options.seed,
    )
    return load, _vocabulary(info)


def _vocabulary(info: Any) -> int:
    try:
        return int(info.json()["vocab_size"])
    except (ValueError, LookupError, TypeError):
        return VOCABULARY


def _prompts(options: argparse.Namespace, vocabulary: int) -> list[Prompt]:
    from .prompts import random_prompts, sharegpt_prompts

    if options.dataset_name == "sharegpt":
        if options.dataset_path is None:
            raise ConfigError("--dataset-name sharegpt needs --dataset-path FILE; nothing is downloaded")
        return sharegpt_prompts(
            options.dataset_path, options.num_prompts, options.sharegpt_output_len, seed=options.seed
        )
    return random_prompts(
        options.num_prompts,
        options.random_input_len,
        options.random_output_len,
        options.random_range_ratio,
        vocabulary=None if options.backend == "openai-chat" else vocabulary,
        seed=options.seed,
    )


def _write(file: Path, load: Load, objectives: dict[str, float], found: dict[str, Any]) -> None:
    settings = {**dataclasses.asdict(load), "request_rate": str(load.request_rate)}
    del settings["api_key"]
    result = {"date": time.strftime("%Y-%m-%d %H:%M:%S"), **settings, "goodput_limits_ms": objectives, **found}
    try:
        file.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}") from error


class _Progress:
    """A line on a terminal with the number of finished requests."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total, self._shown, self._done = total, shown, 0

    def step(self) -> None:
        """Count one more."""
        self._done += 1
        if self._shown:
            print(f"\r{self._done}/{self._total} requests", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """End the line."""
        if self._shown:
            print(file=sys.stderr)


def _percents(text: str) -> list[float]:
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = [math.nan]
    if not all(0 < percent < 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles {text!r} is not a list of numbers between 0 and 100, such as 50,99")
    return percents


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return value


command = BenchCommand()
