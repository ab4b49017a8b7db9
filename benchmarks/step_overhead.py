"""Cost of a step outside the model, and the effect of loaded plugins on it.

Run as ``python -m benchmarks.step_overhead``. Two engines with the same tiny model (one layer, width eight) are built
in one process, one without and one with a hundred extra plugins, and alternate in blocks of steps. Each part of a step
is timed by wrapping the function that does it; ``rest`` is the remaining time of a step (messages, statistics, the
wrappers' own fraction of a microsecond).
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from benchmarks.common.engine_driver import ListInbox
from benchmarks.common.report import parser, ratio, table, write_json
from benchmarks.common.tiny import write_plugins, write_tiny
from sglang_plug import EngineConfig, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import FromEngine, Submit
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat

PARTS = ("scheduler.plan", "runner.build", "attention.plan", "forward", "head", "sample", "commit")
BLOCK = 20
"""Steps of one engine before the other's turn."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Median microseconds of a decode step."""

    batch: int
    context: int
    plugins: int
    step: float
    parts: dict[str, float]

    @property
    def outside(self) -> float:
        """Return the cost without forward and head."""
        return self.step - self.parts["forward"] - self.parts["head"]


class Engine:
    """An engine whose steps a script runs, with a stopwatch in every part."""

    def __init__(self, folder: Path, plugins: int, *, capacity: int, running: int, attention: str) -> None:
        self.count = plugins
        self.seconds: dict[str, float] = defaultdict(float)
        files = write_plugins(folder / f"plugins-{plugins}", plugins)
        config = EngineConfig(
            model=ModelOptions(path=str(folder / "model"), load_format="dummy", device="cpu"),
            cache=CacheOptions(max_total_tokens=capacity),
            schedule=ScheduleOptions(max_running_requests=running, chunked_prefill_size=1 << 20),
            backends=BackendOptions(attention=attention),
            plugins=PluginOptions(files=files, strict=True),
        )
        started = time.perf_counter()
        registry = Plugins.discover(config.plugins)
        self.discovery = time.perf_counter() - started
        self.inbox = ListInbox()
        self.loop = build_engine(config, registry, self.inbox, self.tell, Heartbeat())
        self._watch(self.loop)

    def tell(self, message: FromEngine) -> None:
        """Receive outputs instead of a client."""

    def _watch(self, loop: EngineLoop) -> None:
        scheduler, runner = loop.scheduler, loop.runner
        scheduler.plan = self.timed("scheduler.plan", scheduler.plan)  # type: ignore[method-assign]
        committer = loop.pipeline.committer
        committer.commit = self.timed("commit", committer.commit)  # type: ignore[method-assign]
        runner.build = self.timed("runner.build", runner.build)  # type: ignore[method-assign]
        runner.backend.plan = self.timed("attention.plan", runner.backend.plan)  # type: ignore[method-assign]
        runner.components.model.forward = self.timed("forward", runner.components.model.forward)  # type: ignore[method-assign]
        runner.components.model.head = self.timed("head", runner.components.model.head)  # type: ignore[method-assign]
        runner.sampler.sample = self.timed("sample", runner.sampler.sample)  # type: ignore[method-assign]

    def timed(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap ``function`` to add its time up under ``name``."""
        seconds, clock = self.seconds, time.perf_counter

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            started = clock()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[name] += clock() - started

        return watched

    def submit(self, batch: int, context: int, new_tokens: int) -> None:
        """Queue ``batch`` prompts of ``context`` tokens that share nothing, and compute them."""
        vocabulary = self.loop.info["vocab_size"]
        for row in range(batch):
            tokens = tuple((row * 7919 + position * 31 + row * position) % vocabulary for position in range(context))
            params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0)
            self.inbox.messages.append(Submit(Request(id=f"{batch}-{context}-{row}", tokens=tokens, params=params)))
        while not self.loop.scheduler.running or self.loop.scheduler.waiting:
            self.loop.step()

    def steps(self, count: int) -> list[dict[str, float]]:
        """Run ``count`` steps; return the seconds of each part, and of the ``step``, for each."""
        steps = []
        for _ in range(count):
            self.seconds.clear()
            started = time.perf_counter()
            self.loop.step()
            steps.append({**self.seconds, "step": time.perf_counter() - started})
        return steps

    def drain(self) -> None:
        """Finish running requests and empty the cache."""
        while self.loop.scheduler.busy:
            self.loop.step()
        self.loop.scheduler.flush()


def measure(engines: list[Engine], batch: int, context: int, steps: int) -> list[Cost]:
    """Return the cost of decode steps of ``batch`` sequences for each engine."""
    blocks = -(-steps // BLOCK)
    for engine in engines:
        engine.submit(batch, context, (blocks + 2) * BLOCK)
        engine.steps(BLOCK)
    results: list[list[dict[str, float]]] = [[] for _ in engines]
    gc.collect()
    gc.disable()
    try:
        for block in range(blocks):
            turns = list(zip(engines, results, strict=True))
            for engine, rows in turns if block % 2 else reversed(turns):
                rows += engine.steps(BLOCK)
    finally:
        gc.enable()
    for engine in engines:
        engine.drain()
    return [_cost(engine.count, batch, context, rows) for engine, rows in zip(engines, results, strict=True)]


def _cost(plugins: int, batch: int, context: int, rows: list[dict[str, float]]) -> Cost:
    def median(name: str) -> float:
        return statistics.median(row.get(name, 0.0) for row in rows) * 1e6

    parts = {name: median(name) for name in PARTS}
    remainder = statistics.median(row["step"] - sum(row.get(name, 0.0) for name in PARTS) for row in rows) * 1e6
    step = median("step")
    return Cost(batch=batch, context=context, plugins=plugins, step=step, parts={**parts, "rest": remainder})


def show(costs: list[Cost]) -> str:
    """Format microseconds by part."""
    header = ("batch", "context", "plugins", *PARTS, "rest", "step", "outside model")
    rows = [
        (
            str(cost.batch),
            str(cost.context),
            str(cost.plugins),
            *(round(part, 1) for part in cost.parts.values()),
            round(cost.step, 1),
            round(cost.outside, 1),
        )
        for cost in costs
    ]
    return table(header, rows)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 128])
    options.add_argument("--context", type=int, nargs="+", default=[16, 1024], help="tokens of each prompt")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--plugins", type=int, default=100, help="extra plugins of the second engine")
    options.add_argument("--vocabulary", type=int, default=1024)
    options.add_argument("--attention-backend", default="benchmark-store", help="whose plan() is timed")
    options.add_argument("--threads", type=int, default=1, help="torch threads")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    longest = max(args.context) + args.steps + 4 * BLOCK
    sizes = {"capacity": max(args.batch) * longest, "running": max(args.batch)}
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        write_tiny(Path(name) / "model", args.vocabulary)
        engines = [Engine(Path(name), count, attention=args.attention_backend, **sizes) for count in (0, args.plugins)]
        for context in args.context:
            for batch in args.batch:
                costs += measure(engines, batch, context, args.steps)
    print(show(costs))
    ratios = [ratio(after.step, before.step) for before, after in zip(costs[::2], costs[1::2], strict=True)]
    seconds = [engine.discovery for engine in engines]
    print(
        f"a step with {args.plugins} plugins more takes {statistics.median(ratios):.3f} times as long "
        f"({', '.join(f'{item:.3f}' for item in ratios)}); "
        f"discovery {seconds[0] * 1e3:.0f} ms without, {seconds[1] * 1e3:.0f} ms with them"
    )
    write_json(
        args.json,
        {"options": vars(args) | {"json": None}, "costs": costs, "ratios": ratios, "discovery_seconds": seconds},
    )


if __name__ == "__main__":
    main()
