"""The graphs of an engine, where it has some."""

from __future__ import annotations

from sglang_plug.engine.execution.executors import StepExecutors
from sglang_plug.engine.execution.runner import Runner
from sglang_plug_backends.cuda_graphs.decode_graphs import DecodeGraphs
from sglang_plug_backends.cuda_graphs.prefill_graphs import PrefillGraphs

DECODE_GRAPHS, PIECEWISE_GRAPHS = "decode-graphs", "piecewise-graphs"


def decode_graphs(runner: Runner) -> DecodeGraphs | None:
    """Return the decode graphs of ``runner``; ``None`` if it has none."""
    executor = runner.executors.by_name.get(DECODE_GRAPHS)
    return executor if isinstance(executor, DecodeGraphs) else None


def prefill_graphs(runner: Runner) -> PrefillGraphs | None:
    """Return the piecewise graphs of ``runner``; ``None`` if it has none."""
    executor = runner.executors.by_name.get(PIECEWISE_GRAPHS)
    return executor if isinstance(executor, PrefillGraphs) else None


def without(runner: Runner, name: str) -> StepExecutors:
    """Return the executors of ``runner`` but the one of this name."""
    return StepExecutors.of({other: executor for other, executor in runner.executors.by_name.items() if other != name})
