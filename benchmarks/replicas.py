"""Several engines behind one API: ``python -m benchmarks.replicas``.

Four questions, each answered by servers that take turns. Weights are random numbers.

- *throughput*: how many times the output of one engine with one thread do two such engines have, and what do engines of
  other deployments (``--deployment ray``) keep of that;
- *first-token*: how much later is the first token of a single request with the other deployment;
- *kill*: how many of 200 requests in flight are answered when one of two engines is killed;
- *affinity*: which part of the prompt tokens of 64 groups with a shared prefix each is cached by one engine, and by two
  engines that have as many KV slots together, with two routing policies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.common.models import SHAPES, write_model
from benchmarks.common.report import parser, percentile, table, write_json
from benchmarks.common.server import Server, descendants, serving
from benchmarks.load import Figures, Load, run

ENGINE = b"sglang_plug.engine.processes.worker"
"""Part of the command line of an engine's process."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TWO = ("--replicas", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Measurements of one server, one for each round."""

    server: str
    values: tuple[float, ...]
    unit: str

    @property
    def median(self) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.values)

    def ratios(self, other: Row) -> str:
        """Format the quotients of the rounds' values and those of ``other``: lower quartile, median, upper quartile."""
        quotients = [own / reference for own, reference in zip(self.values, other.values, strict=True)]
        return ", ".join(f"{percentile(quotients, share):.3f}" for share in (0.25, 0.5, 0.75))


class Bench:
    """Servers of one model.

    Args:
        folder: for the model and the logs.
        shape: the model's dimensions.
        options: more options of all servers.
        load: requests of a round of *throughput*.
        rounds: measurements of each server.
    """

    def __init__(self, folder: Path, shape: str, options: Sequence[str], load: Load, rounds: int) -> None:
        self._folder, self._load, self._rounds = folder, load, rounds
        model = write_model(SHAPES[shape], folder)
        self._arguments = ("--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init", *options)
        self._vocabulary = SHAPES[shape].vocabulary

    def serve(self, name: str, *options: str) -> contextlib.AbstractContextManager[Server]:
        """Start a server with one thread for each engine."""
        arguments = (*self._arguments, *options)
        return serving(arguments, log=self._folder / f"{name}.log", environment=ONE_THREAD)

    def take_turns(
        self, servers: Mapping[str, Sequence[str]], measure: Callable[[str, int], float], unit: str
    ) -> list[Row]:
        """Start all servers, and measure each in each round in alternating order; the first round does not count."""
        values: dict[str, list[float]] = {name: [] for name in servers}
        with contextlib.ExitStack() as stack:
            urls = {name: stack.enter_context(self.serve(name, *options)).url for name, options in servers.items()}
            for number in range(self._rounds + 1):
                for name in list(servers)[:: 1 if number % 2 else -1]:
                    values[name].append(measure(urls[name], number))
        return [Row(server=name, values=tuple(own[1:]), unit=unit) for name, own in values.items()]

    def throughput(self, deployments: Sequence[str]) -> list[Row]:
        """Measure output tokens per second."""
        servers: dict[str, Sequence[str]] = {"one engine": (), "two engines": TWO}
        servers |= {f"two engines, {name}": (*TWO, "--deployment", name) for name in deployments}

        def measure(url: str, number: int) -> float:
            return self._send(replace(self._load, url=url, seed=number)).output_rate

        return self.take_turns(servers, measure, "tokens/s")

    def first_token(self, deployments: Sequence[str]) -> list[Row]:
        """Measure the median time to the first token of requests one after the other."""
        servers = {name: (*TWO, "--deployment", name) for name in ("process", *deployments)}

        def measure(url: str, number: int) -> float:
            single = Load(url=url, requests=20, concurrency=1, input_len=16, output_len=2, seed=1000 + number)
            return 1000 * self._send(single).first_token.p50

        return self.take_turns(servers, measure, "ms")

    def kill(self, count: int) -> list[Row]:
        """Kill one of two engines while ``count`` requests that are not streamed are in flight; count the answers."""
        answered = []
        for number in range(self._rounds):
            with self.serve("kill", *TWO) as server:
                answered.append(float(asyncio.run(self._killed(server, count, number))))
        return [Row(server="two engines, one killed", values=tuple(answered), unit=f"of {count} answered")]

    async def _killed(self, server: Server, count: int, seed: int) -> int:
        generator = random.Random(seed)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=httpx.Limits()) as client:

            async def ask() -> bool:
                tokens = [generator.randrange(10, self._vocabulary) for _ in range(64)]
                params = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
                answer = await client.post("/generate", json={"input_ids": tokens, "sampling_params": params})
                return answer.status_code == 200 and len(answer.json()["output_ids"]) == 32

            tasks = [asyncio.create_task(ask()) for _ in range(count)]
            while sum(task.done() for task in tasks) < count // 20:
                await asyncio.sleep(0.01)
            os.kill(engines(server.pid)[0], signal.SIGKILL)
            return sum(await asyncio.gather(*tasks))

    def affinity(self, groups: int, prefix: int, requests: int) -> list[Row]:
        """Measure the part of the prompt tokens that is cached, with room for the prefixes of three in four groups."""
        slots = groups * prefix * 3 // 4
        servers = {
            "one engine": ("--max-total-tokens", str(slots)),
            "prefix-affinity": ("--max-total-tokens", str(slots // 2), *TWO, "--routing-policy", "prefix-affinity"),
            "round-robin": ("--max-total-tokens", str(slots // 2), *TWO, "--routing-policy", "round-robin"),
        }

        def measure(url: str, number: int) -> float:
            return asyncio.run(self._hit_rate(url, groups, prefix, requests, number))

        return self.take_turns(servers, measure, "of prompt tokens cached")

    async def _hit_rate(self, url: str, groups: int, prefix: int, requests: int, seed: int) -> float:
        generator = random.Random(seed)
        shared = [[generator.randrange(10, self._vocabulary) for _ in range(prefix)] for _ in range(groups)]
        prompts = [
            [*generator.choice(shared), *(generator.randrange(10, self._vocabulary) for _ in range(32))]
            for _ in range(requests)
        ]
        semaphore, cached, total = asyncio.Semaphore(4), 0, 0
        async with httpx.AsyncClient(base_url=url, timeout=600) as client:

            async def ask(tokens: list[int]) -> None:
                nonlocal cached, total
                async with semaphore:
                    params = {"temperature": 0, "max_new_tokens": 1}
                    answer = await client.post("/generate", json={"input_ids": tokens, "sampling_params": params})
                meta = answer.raise_for_status().json()["meta_info"]
                cached, total = cached + meta["cached_tokens"], total + meta["prompt_tokens"]

            await asyncio.gather(*map(ask, prompts))
        return cached / total

    def _send(self, load: Load) -> Figures:
        figures = asyncio.run(run(replace(load, vocabulary=self._vocabulary)))
        if figures.failures:
            raise RuntimeError(f"{figures.failures} requests failed: {figures.errors}")
        return figures


def engines(pid: int) -> list[int]:
    """Return the processes of the engines below the process ``pid`` of a server."""
    return [child for child in descendants(pid) if ENGINE in Path(f"/proc/{child}/cmdline").read_bytes()]


def show(part: str, rows: Sequence[Row]) -> str:
    """Format the median of each server, and its ratio to the first one (or, of further deployments, the second)."""
    lines = []
    for row in rows:
        reference = rows[1] if part == "throughput" and row in rows[2:] else rows[0]
        ratios = "" if row is reference else f"{row.ratios(reference)} (to {reference.server})"
        lines.append((row.server, row.median, row.unit, ratios))
    return table((part, "median", "", "ratio: quartile, median, quartile"), lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parser(__doc__)
    parts = ("throughput", "first-token", "kill", "affinity")
    options.add_argument("--part", action="append", choices=parts, help="only this one; repeatable")
    options.add_argument("--deployment", action="append", default=[], help="another deployment to measure, such as ray")
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B", help="the model's dimensions")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--requests", type=int, default=32, help="of a round of throughput, all at once")
    options.add_argument("--input-len", type=int, default=64)
    options.add_argument("--output-len", type=int, default=32)
    options.add_argument("--killed-requests", type=int, default=200)
    options.add_argument("--groups", type=int, default=64, help="groups of prompts with a shared prefix")
    options.add_argument("--group-requests", type=int, default=640, help="requests of all groups")
    options.add_argument("--prefix-len", type=int, default=512)
    options.add_argument("options", nargs="*", help="more options for the servers, behind --")
    args = options.parse_args(arguments)
    load = Load(url="", requests=args.requests, input_len=args.input_len, output_len=args.output_len)
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
        bench = Bench(Path(folder), args.shape, args.options, load, args.rounds)
        results = {part: rows_of(bench, part, args) for part in args.part or parts}
    write_json(args.json, results)


def rows_of(bench: Bench, part: str, args: argparse.Namespace) -> list[Row]:
    """Measure one part, and print its table."""
    if part == "throughput":
        rows = bench.throughput(args.deployment)
    elif part == "first-token":
        rows = bench.first_token(args.deployment)
    elif part == "kill":
        rows = bench.kill(args.killed_requests)
    else:
        rows = bench.affinity(args.groups, args.prefix_len, args.group_requests)
    print(show(part, rows), flush=True)
    return rows


if __name__ == "__main__":
    main()
