"""Measure how long an interactive caller waits while another caller sends long prompts, for several schedule policies.

Run as ``python -m benchmarks.heavy_caller``. For each ``--policy`` a server with random weights and two API keys is
started. The servers take turns, and only one of them is busy at any time. A round of a server has three parts:

- *idle*: the interactive caller asks short questions one after the other;
- *alone*: the heavy caller sends all of its long prompts at once;
- *loaded*: the same, while the interactive caller asks its questions, spread over the time that *alone* took.

Each part ends after ``--limit`` seconds at the latest. A question that has no first token then counts as having waited
until then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.common.models import SHAPES, write_model
from benchmarks.common.report import parser, percentile, table, write_json
from benchmarks.common.server import serving
from benchmarks.load import Load, Reply, ask, body, prompts

KEYS = {"interactive": "benchmark-interactive", "heavy": "benchmark-heavy"}
"""API keys of the two callers, of servers that only this program uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The requests of a round."""

    prompts: int
    prompt_len: int
    questions: int
    question_len: int
    output_len: int
    """Tokens of every output."""
    limit: float
    """Maximum time in seconds of a part of a round."""
    vocabulary: int = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Figures of one round of one server. Times in seconds."""

    policy: str
    idle_p99: float
    """Time to the first token of a question on the idle server."""
    loaded_median: float
    loaded_p99: float
    unanswered: int
    """Questions that had no first token when the part ended."""
    step: float
    """Predicted time of a step with as many prompt tokens as one may have."""
    alone_rate: float
    """Tokens of prompts and outputs per second of the heavy caller without the interactive one."""
    loaded_rate: float

    @property
    def target(self) -> float:
        """Three times the time on an idle server, and one step."""
        return 3 * self.idle_p99 + self.step

    @property
    def kept(self) -> float:
        """Part of its throughput that the heavy caller keeps."""
        return self.loaded_rate / self.alone_rate if self.alone_rate else float("nan")


class Caller:
    """Sends the requests of one API key.

    Args:
        url: the server.
        name: which of ``KEYS``.
        load: its requests.
    """

    def __init__(self, url: str, name: str, load: Load) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Authorization": f"Bearer {KEYS[name]}"}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=load.timeout, limits=limits)
        self._load = load
        self.replies: list[Reply] = []
        """Of the requests that were sent, in their order."""

    async def send_all(self, every: float) -> None:
        """Send a request ``every`` so many seconds, without waiting for answers, and wait for all answers then."""
        started, bodies = time.perf_counter(), [body(self._load, tokens) for tokens in prompts(self._load)]

        async def send(number: int) -> None:
            await asyncio.sleep(max(0.0, started + every * (number + 0.5) - time.perf_counter()))
            self.replies.append(reply := Reply(time.perf_counter()))
            await ask(self._client, self._load, bodies[number], reply)

        await asyncio.gather(*map(send, range(len(bodies))))

    async def send_in_turn(self) -> None:
        """Send each request when the one before it is answered."""
        for tokens in prompts(self._load):
            self.replies.append(reply := Reply(time.perf_counter()))
            await ask(self._client, self._load, body(self._load, tokens), reply)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def rate(self, started: float) -> float:
        """Return the tokens per second of the requests that were answered, since ``started``."""
        done = [reply for reply in self.replies if reply.prompt_tokens and not reply.error]
        seconds = max((reply.finished for reply in done), default=started) - started
        return sum(reply.prompt_tokens + len(reply.times) for reply in done) / seconds if seconds else 0.0


async def measure(policy: str, url: str, plan: Plan, seed: int) -> Round:
    """Measure one round against one server."""
    question = Load(
        url=url,
        requests=plan.questions,
        input_len=plan.question_len,
        output_len=plan.output_len,
        vocabulary=plan.vocabulary,
        seed=seed,
    )
    long_prompt = replace(question, requests=plan.prompts, input_len=plan.prompt_len, seed=seed + 1)
    interactive = Caller(url, "interactive", question)
    await _within(plan.limit, interactive.send_in_turn(), interactive)
    _check(interactive.replies)
    idle = [reply.first for reply in interactive.replies if reply.times]

    alone, started = Caller(url, "heavy", long_prompt), time.perf_counter()
    await _within(plan.limit, alone.send_all(0.0), alone)
    seconds, alone_rate = time.perf_counter() - started, alone.rate(started)
    step = await _step_seconds(url)

    interactive = Caller(url, "interactive", replace(question, seed=seed + 2))
    heavy, started = Caller(url, "heavy", replace(long_prompt, seed=seed + 3)), time.perf_counter()
    every = seconds / (plan.questions + 1)
    await _within(plan.limit, _all(heavy.send_all(0.0), interactive.send_all(every)), heavy, interactive)
    ended = time.perf_counter()
    _check((*alone.replies, *heavy.replies, *interactive.replies))
    waits = [reply.first if reply.times else ended - reply.arrived for reply in interactive.replies]
    return Round(
        policy=policy,
        idle_p99=percentile(idle, 0.99),
        loaded_median=percentile(waits, 0.5),
        loaded_p99=percentile(waits, 0.99),
        unanswered=sum(not reply.times for reply in interactive.replies),
        step=step,
        alone_rate=alone_rate,
        loaded_rate=heavy.rate(started),
    )


async def _all(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run coroutines until all have ended."""
    await asyncio.gather(*coroutines)


async def _within(seconds: float, work: Coroutine[Any, Any, None], *callers: Caller) -> None:
    """Wait for ``work`` up to ``seconds``, then close the connections of ``callers``, which ends their requests."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work, seconds)
    for caller in callers:
        await caller.close()


def _check(replies: Sequence[Reply]) -> None:
    """Raise ``RuntimeError`` if a request failed; those that were still open at the end of a part did not."""
    if errors := {reply.error for reply in replies if reply.error}:
        raise RuntimeError(f"requests failed: {sorted(errors)[:3]}")


async def _step_seconds(url: str) -> float:
    """Return how long a step with as many prompt tokens as one may have takes, as the server predicts it."""
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {KEYS['heavy']}"}) as client:
        info = (await client.get("/server_info")).json()
    learned = info["step_time"]["coefficients"]
    base = learned["prefill_base_multiple"] * (learned["decode_step"] + learned["decode_sequence"])
    return float(base + learned["prefill_token"] * info["chunked_prefill_size"])


async def take_turns(servers: Mapping[str, str], plan: Plan, rounds: int) -> list[Round]:
    """Measure every server in each round, in alternating order."""
    results = []
    for number in range(rounds):
        names = list(servers) if number % 2 == 0 else list(servers)[::-1]
        for name in names:
            results.append(await measure(name, servers[name], plan, 100 * number))
    return results


def show(rounds: Sequence[Round]) -> str:
    """Format the medians over the rounds of each policy: seconds, and the part of its throughput that is kept."""
    header = ("policy", "idle p99", "loaded p50", "loaded p99", "target", "unanswered", "met", "heavy caller keeps")
    rows = []
    for policy in dict.fromkeys(figures.policy for figures in rounds):
        own = [figures for figures in rounds if figures.policy == policy]
        names = ("idle_p99", "loaded_median", "loaded_p99", "target")
        times = [statistics.median(getattr(figures, name) for figures in own) for name in names]
        met = sum(figures.loaded_p99 <= figures.target and not figures.unanswered for figures in own)
        kept = statistics.median(figures.kept for figures in own)
        unanswered = sum(figures.unanswered for figures in own)
        rows.append((policy, *times, unanswered, f"{met} of {len(own)}", f"{100 * kept:.1f} %"))
    return table(header, rows)


def plan_of(args: argparse.Namespace) -> Plan:
    """Return the plan that options describe."""
    return Plan(
        prompts=args.prompts,
        prompt_len=args.prompt_len,
        questions=args.questions,
        question_len=args.question_len,
        output_len=args.output_len,
        limit=args.limit,
        vocabulary=args.vocabulary,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--policy", action="append", default=[], help="schedule policy; repeatable: fcfs and fair")
    options.add_argument("--shape", default="0.5B", choices=sorted(SHAPES))
    options.add_argument("--model", help="a model instead of a shape with random weights")
    options.add_argument("--prompts", type=int, default=500, help="long prompts of the heavy caller")
    options.add_argument("--prompt-len", type=int, default=1500)
    options.add_argument("--questions", type=int, default=30, help="questions of the interactive caller")
    options.add_argument("--question-len", type=int, default=100)
    options.add_argument("--output-len", type=int, default=16, help="tokens of every output")
    options.add_argument("--limit", type=float, default=1800.0, help="maximum seconds of each of a round's three parts")
    options.add_argument("--vocabulary", type=int, default=32_768, help="prompt token ids are below this")
    options.add_argument("--rounds", type=int, default=1)
    args = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        server_arguments: tuple[str, ...] = ("--api-key", ",".join(KEYS.values()))
        if args.model:
            server_arguments += ("--model-path", args.model)
        else:
            path = write_model(SHAPES[args.shape], Path(folder))
            server_arguments += ("--model-path", str(path), "--load-format", "dummy", "--dtype", "bfloat16")
            server_arguments += ("--skip-tokenizer-init", "--max-total-tokens", "65536")
        servers = {}
        for policy in args.policy or ["fcfs", "fair"]:
            log = Path(folder) / f"{policy}.log"
            server = running.enter_context(serving((*server_arguments, "--schedule-policy", policy), log=log))
            servers[policy] = server.url
        rounds = asyncio.run(take_turns(servers, plan_of(args), args.rounds))
    print(show(rounds))
    write_json(args.json, rounds)


if __name__ == "__main__":
    main()
