"""KV tiers: ``python -m benchmarks.kv_tiers``.

Four questions, each with and without ``--kv-store host,disk`` in turn: the first token after a restart, the time for
conversations that together need many times the pool, the cost where no prefix is used again, and how long streams wait
for a token while prompts are loaded. Weights are random numbers, equal in all servers.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.models import SHAPES
from benchmarks.common.report import percentile
from benchmarks.common.server import serving

OPTIONS = ("--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "bfloat16", "--random-seed", "1")
TIMEOUT = 3600.0
PARTS = ("restart", "conversations", "without-hits", "streams")
STREAMS = 32
"""Streams that decode while prompts are loaded."""
ALONE_SECONDS = 10.0
"""Seconds for which these streams are measured before the first prompt."""


class Bench:
    """Servers with one model, with and without stores.

    Args:
        folder: for the model and the directory of blocks.
        shape: the model's dimensions.
        options: more options of all servers.
    """

    def __init__(self, folder: Path, shape: str, options: Sequence[str]) -> None:
        self._folder, self._options = folder, tuple(options)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(SHAPES[shape].config()), encoding="utf-8")
        self.vocabulary = SHAPES[shape].vocabulary

    @contextmanager
    def client(self, *, pool: int, stores: bool, name: str = "") -> Iterator[httpx.Client]:
        """Start a server with ``pool`` KV slots; servers with one ``name`` share their directory."""
        options = ["--model-path", str(self._folder / "model"), *OPTIONS, "--max-total-tokens", str(pool)]
        if stores:
            settings = (f"disk.path={self._folder / name}", "disk.bytes=8GB", "host.bytes=8GB")
            options += ["--kv-store", "host,disk", *(part for setting in settings for part in ("--set", setting))]
        with serving([*options, *self._options], log=self._folder / "server.log") as server:
            with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
                yield client

    def prompt(self, seed: int, length: int) -> list[int]:
        """Return random tokens."""
        generator = random.Random(seed)
        return [generator.randrange(10, self.vocabulary) for _ in range(length)]


def first_token(client: httpx.Client, tokens: Sequence[int]) -> tuple[float, int]:
    """Return the seconds to the first token, and how many tokens were cached."""
    began = time.perf_counter()
    meta = generate(client, tokens, 1)["meta_info"]
    return time.perf_counter() - began, meta["cached_tokens"]


def generate(client: httpx.Client, tokens: Sequence[int], new: int) -> dict[str, Any]:
    """Return the answer to a greedy request."""
    params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
    answer = client.post("/generate", json={"input_ids": list(tokens), "sampling_params": params})
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


def wait_stored(client: httpx.Client) -> None:
    """Wait until everything that was computed is stored."""
    while (stores := client.get("/server_info").json().get("kv_stores")) is not None and stores["queued_blocks"]:
        time.sleep(0.05)


def restart(bench: Bench, length: int, rounds: int) -> dict[str, Any]:
    """Measure the first token of a prompt right after the start: computed, and from the directory."""
    tokens, times = bench.prompt(0, length), {"computed": list[float](), "loaded": list[float]()}
    with bench.client(pool=2 * length, stores=True, name="restart") as client:
        generate(client, tokens, 4)
        wait_stored(client)
    for _ in range(rounds):
        for name, stores in (("computed", False), ("loaded", True)):
            with bench.client(pool=2 * length, stores=stores, name="restart") as client:
                generate(client, bench.prompt(1, 40), 1)
                seconds, cached = first_token(client, tokens)
                assert (cached > 0) == stores
                times[name].append(seconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "ratio": medians["computed"] / medians["loaded"]}


def conversations(bench: Bench, count: int, length: int, turns: int) -> dict[str, Any]:
    """Measure ``count`` conversations that take turns, and whose tokens are ten times those of the pool."""
    times = {}
    for name, stores in (("without", False), ("with", True)):
        with bench.client(pool=count * length // 10, stores=stores, name="conversations") as client:
            began = time.perf_counter()
            tokens = [bench.prompt(100 + number, length - turns * 40) for number in range(count)]
            for turn in range(turns):
                for number in range(count):
                    answer = generate(client, tokens[number], 8)
                    tokens[number] += [*answer["output_ids"], *bench.prompt(turn, 32)]
            times[name] = time.perf_counter() - began
    return {**times, "ratio": times["without"] / times["with"]}


def without_hits(bench: Bench, length: int, rounds: int) -> dict[str, Any]:
    """Measure prompts that were not sent before, on two servers in turn."""
    times = {"without": list[float](), "with": list[float]()}
    with bench.client(pool=4 * length, stores=False) as plain:
        with bench.client(pool=4 * length, stores=True, name="new") as tiered:
            for number in range(rounds):
                for name, client in (("without", plain), ("with", tiered)):
                    seconds, _ = first_token(client, bench.prompt(1000 + number, length))
                    times[name].append(seconds)
                    wait_stored(client)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {**medians, "ratio": medians["with"] / medians["without"]}


def streams(bench: Bench, length: int, prompts: int) -> dict[str, Any]:
    """Measure the seconds between tokens of 32 streams, alone and while prompts are loaded, or computed."""
    loaded = [bench.prompt(2000 + number, length) for number in range(prompts)]
    pool = (prompts + 2) * length + STREAMS * 1024
    with bench.client(pool=pool, stores=True, name="streams") as client:
        for tokens in loaded:
            generate(client, tokens, 1)
        wait_stored(client)
    figures = {}
    for name, stores in (("computed", False), ("loaded", True)):
        with bench.client(pool=pool, stores=stores, name="streams") as client:
            generate(client, bench.prompt(1, 40), 1)
            alone, during = _gaps_of_streams(bench, client, loaded)
        for when, gaps in (("alone", alone), (name, during)):
            figures |= {f"{when}-p50": percentile(gaps, 0.5), f"{when}-p99": percentile(gaps, 0.99)}
            figures[f"{when}-max"] = max(gaps)
    return figures


def _gaps_of_streams(
    bench: Bench, client: httpx.Client, prompts: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Return the seconds between tokens of the streams before ``prompts`` are sent, and while they are answered."""
    arrivals, stop = [list[float]() for _ in range(STREAMS)], threading.Event()

    def stream(number: int) -> None:
        params = {"temperature": 0, "max_new_tokens": 1000, "ignore_eos": True}
        body = {"input_ids": bench.prompt(3000 + number, 16), "sampling_params": params, "stream": True}
        with client.stream("POST", "/generate", json=body) as answer:
            for line in answer.iter_lines():
                if stop.is_set():
                    return
                if line.startswith("data: {"):
                    arrivals[number].append(time.perf_counter())

    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(stream, number) for number in range(STREAMS)]
        while not all(len(times) > 2 for times in arrivals):
            time.sleep(0.1)
        alone = time.perf_counter()
        time.sleep(ALONE_SECONDS)
        began = time.perf_counter()
        for tokens in prompts:
            generate(client, tokens, 1)
        ended = time.perf_counter()
        stop.set()
        for future in running:
            future.result()
    return _gaps(arrivals, alone, began), _gaps(arrivals, began, ended)


def _gaps(arrivals: Sequence[Sequence[float]], start: float, end: float) -> list[float]:
    """Return the seconds between arrivals, of which the second one is between ``start`` and ``end``."""
    return [later - earlier for times in arrivals for earlier, later in pairwise(times) if start <= later <= end]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description="Prefixes from KV stores, against computing them.")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this question; repeatable")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.5B", help="the model's dimensions")
    parser.add_argument("--length", type=int, default=2000, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--conversations", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.add_argument("options", nargs="*", help="more options for the servers, behind --")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kv-tiers-") as folder:
        bench = Bench(Path(folder), args.shape, args.options)
        measures: Mapping[str, Callable[[], dict[str, Any]]] = {
            "restart": lambda: restart(bench, args.length, args.rounds),
            "conversations": lambda: conversations(bench, args.conversations, args.length, args.turns),
            "without-hits": lambda: without_hits(bench, args.length, 2 * args.rounds + 1),
            "streams": lambda: streams(bench, args.length, 2 * args.rounds),
        }
        figures = {part: measures[part]() for part in args.part or PARTS}
    for part, row in figures.items():
        print(f"{part:<15}", "  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    if args.json is not None:
        args.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
