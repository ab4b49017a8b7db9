"""Time between tokens of decoding requests while long prompts of others are computed.

Run as ``python -m benchmarks.mixed_load``: starts ``sglang-plug serve`` with random weights. Some requests decode,
first alone and then during a steady flow of long prompts with outputs of one token. With ``--url NAME=URL``, repeated,
servers that run already take turns, and the figures of each are compared with those of the first in the same round.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.common.models import SHAPES, write_model
from benchmarks.common.report import parser, percentile, table, write_json
from benchmarks.common.server import serving
from benchmarks.load import Load, Reply, ask, body, prompts, run

LONG_OUTPUT = 4000
"""Tokens that decoding requests ask for; they are aborted at the end of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Figures of one round. Times in seconds."""

    server: str
    alone_median: float
    alone_p99: float
    mixed_median: float
    mixed_p99: float
    mixed_longest: float
    first_token: float
    """Median time to the first token of the long prompts."""
    total_rate: float
    """Tokens of prompts and outputs per second, while prompts were computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The requests of a round."""

    streams: int
    prompts: int
    prompt_len: int
    at_once: int
    """Long prompts in flight."""
    seconds_alone: float


async def measure(name: str, url: str, plan: Plan, seed: int) -> Round:
    """Measure one round against one server."""
    load = Load(url=url, requests=plan.streams, input_len=128, output_len=LONG_OUTPUT, seed=seed)
    replies = [Reply(time.perf_counter()) for _ in range(plan.streams)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=load.timeout, limits=limits) as client:
        tasks = [
            asyncio.create_task(ask(client, load, body(load, tokens), reply))
            for tokens, reply in zip(prompts(load), replies, strict=True)
        ]
        while not all(reply.times for reply in replies):
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        await asyncio.sleep(plan.seconds_alone)
        middle = time.perf_counter()
        flow = Load(
            url=url,
            requests=plan.prompts,
            concurrency=plan.at_once,
            input_len=plan.prompt_len,
            output_len=1,
            seed=seed + 1000,
        )
        figures = await run(flow)
        ended = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if figures.failures:
        raise RuntimeError(f"prompts failed: {figures.errors}")
    alone, mixed = gaps(replies, began, middle), gaps(replies, middle, ended)
    tokens = sum(middle <= moment < ended for reply in replies for moment in reply.times)
    return Round(
        server=name,
        alone_median=percentile(alone, 0.5),
        alone_p99=percentile(alone, 0.99),
        mixed_median=percentile(mixed, 0.5),
        mixed_p99=percentile(mixed, 0.99),
        mixed_longest=max(mixed),
        first_token=figures.first_token.p50,
        total_rate=(plan.prompts * plan.prompt_len + tokens) / (ended - middle),
    )


def gaps(replies: Sequence[Reply], start: float, stop: float) -> list[float]:
    """Return the times between tokens that arrived between ``start`` and ``stop``; the last one may be unfinished."""
    results = []
    for reply in replies:
        moments = [moment for moment in reply.times if start <= moment < stop]
        results += [after - before for before, after in zip(moments, moments[1:], strict=False)]
        results.append(stop - (moments[-1] if moments else start))
    return results


async def take_turns(servers: Sequence[tuple[str, str]], plan: Plan, rounds: int) -> list[Round]:
    """Measure every server in each round, in alternating order."""
    results = []
    for number in range(rounds):
        for name, url in servers if number % 2 else servers[::-1]:
            await measure(name, url, replace(plan, prompts=min(2, plan.prompts)), 7000 + number)  # learn its speed
            results.append(await measure(name, url, plan, 100 * number))
    return results


def show(rounds: Sequence[Round], servers: Sequence[str]) -> str:
    """Format the median over rounds in milliseconds, and ratios to the first server with quartiles."""
    header = ("server", "ITL alone p50", "p99", "mixed p50", "p99", "longest", "p99 / alone p99", "TTFT", "tokens/s")
    rows = []
    for name in servers:
        own = [result for result in rounds if result.server == name]
        times = [
            statistics.median(getattr(result, field) for result in own) * 1000
            for field in ("alone_median", "alone_p99", "mixed_median", "mixed_p99", "mixed_longest")
        ]
        factor = statistics.median(result.mixed_p99 / result.alone_p99 for result in own)
        first = statistics.median(result.first_token for result in own) * 1000
        rate = statistics.median(result.total_rate for result in own)
        rows.append((name, *(f"{value:.0f}" for value in times), f"{factor:.2f}", f"{first:.0f}", f"{rate:.0f}"))
    text = table(header, rows)
    reference = [result for result in rounds if result.server == servers[0]]
    for name in servers[1:]:
        own = [result for result in rounds if result.server == name]
        for field in ("mixed_p99", "first_token", "total_rate"):
            ratios = [getattr(a, field) / getattr(b, field) for a, b in zip(own, reference, strict=True)]
            text += f"\n{field} of {name} / {servers[0]}: " + ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    return text


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--url", action="append", default=[], metavar="NAME=URL", help="a server that runs already")
    options.add_argument("--shape", default="0.5B", choices=sorted(SHAPES))
    options.add_argument("--streams", type=int, default=8, help="requests that decode")
    options.add_argument("--prompts", type=int, default=8, help="long prompts of a round")
    options.add_argument("--prompt-len", type=int, default=2000)
    options.add_argument("--at-once", type=int, default=2, help="long prompts in flight")
    options.add_argument("--seconds-alone", type=float, default=5.0)
    options.add_argument("--rounds", type=int, default=3)
    args = options.parse_args()
    plan = Plan(
        streams=args.streams,
        prompts=args.prompts,
        prompt_len=args.prompt_len,
        at_once=args.at_once,
        seconds_alone=args.seconds_alone,
    )
    if args.url:
        servers = [(name, url) for name, _, url in (entry.partition("=") for entry in args.url)]
        rounds = asyncio.run(take_turns(servers, plan, args.rounds))
    else:
        with tempfile.TemporaryDirectory() as folder:
            model = write_model(SHAPES[args.shape], Path(folder))
            arguments = (
                "--model-path",
                str(model),
                "--load-format",
                "dummy",
                "--dtype",
                "bfloat16",
                "--skip-tokenizer-init",
            )
            with serving(arguments, log=Path(folder) / "server.log") as server:
                servers = [("server", server.url)]
                rounds = asyncio.run(take_turns(servers, plan, args.rounds))
    print(show(rounds, [name for name, _ in servers]))
    write_json(args.json, rounds)


if __name__ == "__main__":
    main()
