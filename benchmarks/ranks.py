"""Cost of a decode step with one rank and with several, by kind of tensor exchange.

Run as ``python -m benchmarks.ranks``. Random weights; the engines alternate, so that the figures of one round are
comparable while other work runs on the machine.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.decode_options import add_options, choice_of, load_of
from benchmarks.common.engine_driver import ListInbox, decode_seconds, nobody
from benchmarks.common.report import parser, table, write_json
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import Plugins, Request, SamplingParams
from sglang_plug.config import AUTO, EngineConfig, ParallelOptions, PluginOptions
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat

SOCKETS = {"processes": {"shared_memory": False}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Median seconds of a decode step."""

    ranks: int
    exchange: str
    step: float


class Bench:
    """An engine with its worker ranks."""

    def __init__(self, config: EngineConfig) -> None:
        self.inbox, self._runs = ListInbox(), 0
        plugins = Plugins.discover(config.plugins)
        self.loop = build_engine(config, plugins, self.inbox, nobody, Heartbeat())

    def step(self, load: Load) -> float:
        """Return the median of a decode step."""
        self._runs += 1
        params = SamplingParams(max_new_tokens=load.output_len, temperature=0.0)
        requests = [
            Request(id=f"{self._runs}-{number}", tokens=tuple(tokens), params=params)
            for number, tokens in enumerate(prompts(load))
        ]
        return statistics.median(decode_seconds(self.loop, self.inbox, requests, load.output_len // 2))

    def close(self) -> None:
        """Stop the worker ranks."""
        if self.loop.ranks is not None:
            self.loop.ranks.close()


def measure(choice: Choice, load: Load, *, ranks: int, executor: str = AUTO, rounds: int = 3) -> list[Result]:
    """Measure one rank, and ``ranks`` with sockets and with shared memory; medians of ``rounds``."""
    several = [(ranks, "sockets", SOCKETS), (ranks, "shared memory", {})] if ranks > 1 else []
    ways: list[tuple[int, str, Mapping[str, Mapping[str, Any]]]] = [(1, "none", {}), *several]
    with ExitStack() as ending, tempfile.TemporaryDirectory() as folder:
        config = choice.config(Path(folder))
        benches = []
        for size, _, settings in ways:
            benches.append(
                Bench(
                    dataclasses.replace(
                        config,
                        parallel=ParallelOptions(tp_size=size, executor=executor),
                        plugins=PluginOptions(settings=settings),
                    )
                )
            )
            ending.callback(benches[-1].close)
        steps = [[bench.step(load) for bench in benches] for _ in range(rounds + 1)][1:]
    return [
        Result(ranks=size, exchange=exchange, step=statistics.median(item))
        for (size, exchange, _), item in zip(ways, zip(*steps, strict=True), strict=True)
    ]


def show(results: list[Result]) -> str:
    """Format as a table."""
    rows = [
        (result.ranks, result.exchange, f"{result.step * 1e3:.2f}", f"{results[0].step / result.step:.2f}")
        for result in results
    ]
    return table(("ranks", "exchange", "ms for a step", "times as fast"), rows)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    add_options(options, requests=1, output_len=64)
    options.set_defaults(device="cpu")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    result = measure(choice_of(args), load_of(args), ranks=args.ranks, rounds=args.rounds)
    print(show(result))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
