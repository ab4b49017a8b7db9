"""Soak test: very many requests of every kind, half of them misbehaving, and checks for leaks.

Run as ``python -m benchmarks.soak --requests 10000``: starts ``sglang-plug serve`` (or takes ``--url`` and, for its
memory, ``--pid``), keeps ``--concurrency`` requests in flight, and looks at the server after 10 %, 50 % and 100 % of
them: resident memory of each of its processes, and in the end whether every KV slot is free or cached, nothing runs
or waits, no process has many more open files or threads than in the beginning, a greedy request is answered as it was
then, and no process is left after SIGTERM. Ends with status 1
if one of these does not hold or a well-formed request was not answered with 200.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.common.report import parser, table, write_json
from benchmarks.common.server import descendants, resident, serving

MIB = 1 << 20
CHECKPOINTS = (0.1, 0.5, 1.0)
GREEDY = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}}
SETTLE_SECONDS = 60.0
SMALL_POOL = ("--max-total-tokens", "16384")
"""Maximum KV pool: it becomes resident as it fills, so one that fills later looks like a leak."""
GROWTH_LIMIT = 64 * MIB
"""Maximum growth of a process in bytes in the second half of the requests."""
MORE_HANDLES = 24
"""Maximum growth in open files or threads: thread pools fill as they are used."""
CONSTRAINTS: tuple[dict[str, str], ...] = (
    {"regex": "[a-z ]{1,40}"},
    {"regex": "(yes|no|perhaps)"},
    {"ebnf": 'root ::= "a" root | "b"'},
    {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
)
WORDS = "the a story of one river and two old friends who counted 1 2 3 4 stars under Paris".split()
MALFORMED: tuple[tuple[str, bytes], ...] = (
    ("/generate", b"{"),
    ("/generate", b'{"text": "x", "sampling_params": {"temperature": -1}}'),
    ("/generate", b'{"input_ids": [99999999]}'),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": "many"}'),
    ("/v1/completions", b'{"prompt": "x", "n": 1000000}'),
    ("/v1/completions", b"[" * 5000),
    ("/v1/completions", b'{"prompt": "x", "stop": 7}'),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its content, the expected status, and the seconds after which the client disconnects."""

    path: str
    body: bytes
    status: int
    leaves_after: float | None


@dataclass(slots=True)
class Tally:
    """Results so far."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[dict[str, int]] = field(default_factory=list)
    """Bytes by process for each check."""
    handles: list[dict[str, int]] = field(default_factory=list)
    """Open files and threads by process at the beginning and at the end."""


def random_call(generator: random.Random) -> Call:
    """Generate a request of a random kind and size."""
    leaves = generator.random() * 0.5 if generator.random() < 0.25 else None
    if generator.random() < 0.1:
        path, body = generator.choice(MALFORMED)
        return Call(path, body, 400, leaves)
    text = " ".join(generator.choices(WORDS, k=generator.choice([1, 5, 20, 100, 300])))
    tokens, n = generator.choice([1, 4, 16, 64]), generator.choice([1, 1, 1, 2, 4])
    stop = generator.choice([None, None, ".", ["e", " the"], "never said"])
    temperature = generator.choice([0, 0.7, 1.5])
    openai = {"max_tokens": tokens, "n": n, "stop": stop, "temperature": temperature}
    native = {**openai, "max_new_tokens": tokens, "min_p": generator.choice([0, 0.05])}
    del native["max_tokens"]
    if generator.random() < 0.15:
        native |= generator.choice(CONSTRAINTS)
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/generate", {"text": text, "sampling_params": native, "return_logprob": generator.random() < 0.2}),
        ("/v1/completions", {"prompt": text, **openai, "logprobs": generator.choice([None, 2])}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **openai}),
    ]
    path, fields = generator.choice(kinds)
    return Call(path, json.dumps({**fields, "stream": generator.random() < 0.5}).encode(), 200, leaves)


class Sender:
    """Sends calls over raw connections, so that disconnecting closes or resets the socket."""

    def __init__(self, url: str, tally: Tally) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None, url
        self._host, self._port, self._tally = parts.hostname, parts.port, tally

    async def send(self, call: Call, *, abruptly: bool) -> None:
        """Send one call and record its result."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        head = (
            f"POST {call.path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\ncontent-length: {len(call.body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(call.leaves_after):
                writer.write(head.encode() + call.body)
                self._check_answer(call, await reader.read())
        except TimeoutError:
            self._tally.outcomes["left"] += 1
        except ConnectionError as error:
            self._tally.wrong.append(f"{call.path} {call.body[:200]!r}: {error}")
        finally:
            if abruptly:
                writer.transport.abort()
            writer.close()

    def _check_answer(self, call: Call, answer: bytes) -> None:
        status = int(answer.split(b" ", 2)[1]) if answer else 0
        self._tally.outcomes[str(status)] += 1
        cut = b"text/event-stream" in answer and b"data: [DONE]" not in answer
        if status != call.status or cut or b'"error":{' in answer and status == 200:
            self._tally.wrong.append(f"{call.path} {call.body[:200]!r}: {answer[:300]!r}")


async def run(url: str, pid: int | None, args: argparse.Namespace, tally: Tally) -> None:
    """Send everything, checking memory on the way."""
    generator = random.Random(args.seed)
    sender = Sender(url, tally)
    checkpoints = {max(1, round(args.requests * share)) for share in CHECKPOINTS}
    sent = 0

    async def work() -> None:
        nonlocal sent
        while sent < args.requests:
            sent += 1
            number = sent
            await sender.send(random_call(generator), abruptly=generator.random() < 0.5)
            if number in checkpoints and pid is not None:
                tally.memory.append(memory_of(pid))

    await asyncio.gather(*(work() for _ in range(args.concurrency)))


def memory_of(pid: int) -> dict[str, int]:
    """Return the resident bytes of a server's processes by role."""
    result: Counter[str] = Counter()
    for descendant in descendants(pid):
        with contextlib.suppress(OSError):
            result[name_of(descendant)] += resident(descendant)
    return dict(result)


def handles_of(pid: int) -> dict[str, int]:
    """Return open files and threads of a server's processes by role."""
    result: Counter[str] = Counter()
    for descendant in descendants(pid):
        for kind, folder in (("files", "fd"), ("threads", "task")):
            with contextlib.suppress(OSError):
                result[f"{kind} of {name_of(descendant)}"] += len(os.listdir(f"/proc/{descendant}/{folder}"))
    return dict(result)


def name_of(pid: int) -> str:
    """Return the role of a server's process. Raises ``OSError`` if it is gone."""
    command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    return command.partition("sglang_plug.engine.")[2].partition("\0")[0] or "api"


def growth(memory: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return each process's growth in bytes from the half-way check to the last."""
    if len(memory) < 2:
        return {}
    return {name: size - memory[-2].get(name, size) for name, size in memory[-1].items()}


def more_handles(handles: Sequence[dict[str, int]]) -> list[str]:
    """Return the handles of which a process has many more at the end than at the beginning."""
    first, last = handles[0], handles[-1]
    more = {name: count for name, count in last.items() if count > first.get(name, count) + MORE_HANDLES}
    return [f"{first[name]} {name} became {count}" for name, count in more.items()]


async def settled(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return ``/server_info`` once nothing runs or waits, or after a minute."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        info: dict[str, Any] = (await client.get("/server_info")).json()
        if (info["running"], info["waiting"]) == (0, 0) or time.monotonic() > deadline:
            return info
        await asyncio.sleep(0.1)


async def soak(url: str, pid: int | None, args: argparse.Namespace, tally: Tally) -> list[str]:
    """Run everything between the start and the end of a server; return the violated conditions."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        before = (await client.post("/generate", json=GREEDY)).json()["text"]
        tally.handles.append({} if pid is None else handles_of(pid))
        await run(url, pid, args, tally)
        info = await settled(client)
        tally.handles.append({} if pid is None else handles_of(pid))
        after = (await client.post("/generate", json=GREEDY)).json()["text"]
    slots = info["slots"]
    broken = [f"{len(tally.wrong)} requests were answered wrongly: {tally.wrong[:3]}"] if tally.wrong else []
    if (info["running"], info["waiting"]) != (0, 0):
        broken.append(f"{info['running']} sequences run and {info['waiting']} wait")
    if slots["free"] + slots["cached"] != slots["capacity"]:
        broken.append(f"KV slots are lost: {slots}")
    if before != after:
        broken.append(f"the greedy answer was {before!r} and is {after!r}")
    grown = {name: size for name, size in growth(tally.memory).items() if size > GROWTH_LIMIT}
    broken += more_handles(tally.handles)
    return broken + [f"{name} grew by {size / MIB:.0f} MiB in the second half" for name, size in grown.items()]


def end(pid: int) -> list[str]:
    """Send SIGTERM to a server; return its processes that are left after a minute."""
    members = descendants(pid)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + SETTLE_SECONDS
    while (survivors := [member for member in members if is_alive(member)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"processes are left after SIGTERM: {survivors}"] if survivors else []


def is_alive(pid: int) -> bool:
    """Return False for processes that are gone or zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def soak_own(args: argparse.Namespace, tally: Tally) -> list[str]:
    """Start a server, soak it and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with serving(args.server_arguments or SMALL_POOL, log=log) as server:
            broken = asyncio.run(soak(server.url, server.pid, args, tally)) + end(server.pid)
        if "Traceback" in (text := log.read_text(encoding="utf-8", errors="replace")):
            broken.append(f"the log has a traceback: {text[text.index('Traceback') :][:2000]}")
    return broken


def show(tally: Tally, seconds: float) -> str:
    """Format the results as tables."""
    outcomes = table(["answer", "requests"], sorted(tally.outcomes.items()))
    names = sorted({name for memory in tally.memory for name in memory})
    shares = [f"{share:.0%}" for share in CHECKPOINTS]
    rows = [
        [share, *(memory.get(name, 0) / MIB for name in names)]
        for share, memory in zip(shares, tally.memory, strict=False)
    ]
    memory = table(["MiB after", *names], rows)
    counted = sorted({name for handle in tally.handles for name in handle})
    rows = [[name, *(handle.get(name, 0) for handle in tally.handles)] for name in counted]
    handles = table(["", "first", "last"], rows)
    speed = f"{sum(tally.outcomes.values()) / seconds:.1f} requests/s, {seconds:.0f} s"
    return "\n\n".join([outcomes, memory, handles, speed])


def main() -> int:
    """Run the soak, print, and return 1 if a condition is violated."""
    options = parser(__doc__)
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--concurrency", type=int, default=32)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--url", help="soak this server instead of starting one")
    options.add_argument("--pid", type=int, help="its process id, for its memory")
    options.add_argument(
        "server_arguments", nargs="*", help="after --: options for sglang-plug serve; a small KV pool if there are none"
    )
    args = options.parse_args()
    tally, started = Tally(), time.monotonic()
    broken = asyncio.run(soak(args.url, args.pid, args, tally)) if args.url else soak_own(args, tally)
    print(show(tally, time.monotonic() - started))
    write_json(args.json, {"outcomes": tally.outcomes, "memory": tally.memory, "broken": broken})
    print("\n".join(broken) or "every slot is free or cached, nothing is left, memory is flat")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
