"""The options that say which model a command talks with, and the connection to it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang_plug import ConfigError, Plugins
from sglang_plug_api.options.option_table import options as all_options
from sglang_plug_api.options.parsing import add_arguments, server_config

if TYPE_CHECKING:
    from .model_client import ModelClient

QUIET = "warning"
"""Log level of a model in this process, whose messages would disturb the answers."""


def add_connection_arguments(parser: argparse.ArgumentParser, plugins: Plugins) -> None:
    """Add ``--url`` and ``--model-name``, and every option of ``serve`` for a model in this process."""
    group = parser.add_argument_group("model on a server")
    group.add_argument("--url", help="address of a server; without it, the model runs in this process")
    group.add_argument("--model-name", metavar="NAME", help="model to ask for; default: the server's first")
    add_arguments(parser, plugins)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling parameters of a request."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="maximum number of tokens of an answer")
    group.add_argument("--temperature", type=float, metavar="NUMBER", help="0 always selects the most likely token")
    group.add_argument(
        "--top-p",
        type=float,
        metavar="NUMBER",
        help="sample from the smallest set of tokens with this total probability",
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")


def sampling_parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling parameters that the user gave."""
    values = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def connect(options: argparse.Namespace, plugins: Plugins) -> Iterator[ModelClient]:
    """Connect to the server at ``--url``, or serve the model in this process inside the context.

    Raises ``ConfigError`` if the model cannot be served, or for options of ``serve`` together with ``--url``.
    """
    from .model_client import ModelClient  # the HTTP client is not needed for --help

    if options.url is not None:
        refuse_server_options(options)
        key = next(iter(getattr(options, "api_key", None) or ()), None)
        with ModelClient(options.url, key, options.model_name) as client:
            yield client
        return
    if options.model_name is not None:
        raise ConfigError("--model-name belongs to --url; a model in this process is named by MODEL or --model-path")
    config = server_config(argparse.Namespace(**{"log_level": QUIET, **vars(options)}), plugins)
    logging.basicConfig(level=config.engine.log_level.upper(), format="%(message)s")
    print("Loading the model ...", file=sys.stderr, flush=True)
    from .local_server import LocalServer

    with LocalServer(config, plugins) as server, ModelClient(server.url, server.api_key) as client:
        yield client


def refuse_server_options(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` if an option of ``serve`` was given besides ``--url``."""
    server_options = [option for option in all_options() if option.key != "api_key" and option.key in vars(options)]
    if server_options or options.model is not None:
        name = server_options[0].flags[0] if server_options else "MODEL"
        raise ConfigError(
            f"{name} has no effect with --url: the server there has its own; to name a model of that "
            "server, use --model-name"
        )
