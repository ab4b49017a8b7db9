"""Arguments that several actions of ``sglang-plug bench`` share, under the names of ``vllm bench``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from sglang_plug import ConfigError

from .figures import METRICS

BACKENDS = {
    "openai": "openai",
    "vllm": "openai",
    "sglang-oai": "openai",
    "openai-chat": "openai-chat",
    "vllm-chat": "openai-chat",
    "sglang-oai-chat": "openai-chat",
    "sglang": "sglang",
}
"""The API of each value of ``--backend``: those of ``vllm bench serve`` and of SGLang's ``bench_serving``."""
KEY_VARIABLE = "OPENAI_API_KEY"


def server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a running server and the model there."""
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", help="address of the server; default: http://HOST:PORT")
    group.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    group.add_argument("--port", type=int, default=30000, metavar="N", help="default: 30000")
    group.add_argument(
        "--model", "--served-model-name", metavar="NAME", help="model to ask for; default: the server's first"
    )
    group.add_argument("--api-key", metavar="TOKEN", help=f"bearer token; default: ${KEY_VARIABLE}")
    request_arguments(group)


def request_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the arguments that say how a server is asked."""
    group.add_argument(
        "--backend",
        choices=BACKENDS,
        default="openai",
        help="API: openai (also vllm, sglang-oai) is /v1/completions, openai-chat (also vllm-chat, sglang-oai-chat) is "
        "/v1/chat/completions, sglang is /generate; default: openai",
    )
    group.add_argument("--endpoint", metavar="PATH", help="path of the API; default: the path of --backend")
    group.add_argument("--header", nargs="*", default=[], metavar="KEY=VALUE", help="headers of each request")


def data_arguments(parser: argparse.ArgumentParser, *, prompts: int) -> None:
    """Add the arguments that say what is sent.

    Args:
        parser: what they are added to.
        prompts: default of ``--num-prompts``.
    """
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset-name", choices=("random", "sharegpt"), default="random", help="default: random")
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="JSON file of conversations, for sharegpt")
    group.add_argument(
        "--num-prompts", type=positive, default=prompts, metavar="N", help=f"number of requests; default: {prompts}"
    )
    group.add_argument(
        "--random-input-len",
        "--input-len",
        dest="input_len",
        type=positive,
        default=1024,
        metavar="N",
        help="tokens of a random prompt; default: 1024",
    )
    group.add_argument(
        "--random-output-len",
        "--sharegpt-output-len",
        "--output-len",
        dest="output_len",
        type=positive,
        metavar="N",
        help="tokens to generate; default: 128, or as many as a recorded answer has",
    )
    group.add_argument(
        "--random-range-ratio", type=_share, default=0.0, metavar="SHARE", help="lengths vary by this share; default: 0"
    )
    group.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FOLDER",
        help="tokenizer that counts the tokens of recorded answers and makes the random prompts of chats; default: "
        "four characters are a token, and a word of a random prompt is one",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="seed of prompts and arrival times; default: 0")


def sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling parameters of the requests."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, metavar="NUMBER", help="default: 0")
    group.add_argument("--top-p", type=float, metavar="NUMBER", help="default: the server's")
    group.add_argument("--top-k", type=int, metavar="N", help="default: the server's")
    group.add_argument("--min-p", type=float, metavar="NUMBER", help="default: the server's")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate as many tokens as wanted; default: yes; --no-ignore-eos for servers that refuse it",
    )


def metric_arguments(
    parser: argparse.ArgumentParser, default_metrics: Sequence[str] = tuple(METRICS)
) -> argparse._ArgumentGroup:
    """Add the arguments about times of requests, with ``default_metrics`` shown by default; return their group."""
    group = parser.add_argument_group("results")
    group.add_argument(
        "--percentile-metrics",
        default=",".join(default_metrics),
        metavar="NAME,…",
        help=f"times that are shown, of {', '.join(METRICS)}; default: {','.join(default_metrics)}",
    )
    group.add_argument("--metric-percentiles", default="99", metavar="P,…", help="percentiles shown; default: 99")
    group.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="count the requests within these limits: ttft:500 tpot:50 e2el:2000",
    )
    return group


def output_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the files that are written, and the switch for the progress."""
    group.add_argument(
        "--output-file", "--output-json", type=Path, metavar="FILE", help="write the figures to this file as JSON"
    )
    group.add_argument("--html", type=Path, metavar="FILE", help="write a report with plots to this HTML file")
    group.add_argument(
        "--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="notes that are written into the JSON file"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress")


def percentiles(text: str) -> list[float]:
    """Return the numbers of ``--metric-percentiles``. Raises ``ConfigError``."""
    try:
        percents = [float(part) for part in text.split(",")]
    except ValueError:
        percents = [math.nan]
    if not all(0 < percent < 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles {text!r} is not a list of numbers between 0 and 100, such as 50,99")
    return percents


def metric_names(text: str) -> list[str]:
    """Return the names of ``--percentile-metrics``. Raises ``ConfigError``."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in METRICS]
    if unknown:
        raise ConfigError(f"--percentile-metrics has no {unknown[0]!r}; known: {', '.join(METRICS)}")
    return names


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return what ``KEY=VALUE`` arguments say. Raises ``ConfigError`` that names ``flag``."""
    wrong = [text for text in texts if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise ConfigError(f"{flag} {wrong[0]!r} is not KEY=VALUE")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


def positive(text: str) -> int:
    """Convert an argument to an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def not_negative(text: str) -> int:
    """Convert an argument to an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def rate(text: str) -> float:
    """Convert an argument to a number greater than 0; ``inf`` is one."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, got {text}")
    return value
