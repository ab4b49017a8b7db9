"""``sglang-plug bench``: measures a model on a server or in this process, with the flags of ``vllm bench``."""

from __future__ import annotations

import argparse
from typing import Protocol

from sglang_plug import Plugins

from .offline import LatencyAction, ThroughputAction
from .serve import ServeAction
from .sweep import SweepAction


class Action(Protocol):
    """One kind of measurement, with its arguments."""

    summary: str

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the arguments."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Measure and print; return the exit status."""


ACTIONS: dict[str, Action] = {
    "serve": ServeAction(),
    "sweep": SweepAction(),
    "latency": LatencyAction(),
    "throughput": ThroughputAction(),
}


class BenchCommand:
    """The command, whose actions measure."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add one subparser for each action."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for name, action in ACTIONS.items():
            subparser = actions.add_parser(name, help=action.summary, description=action.summary)
            action.arguments(subparser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Run the chosen action."""
        return ACTIONS[options.action].run(options, plugins)


command = BenchCommand()
