"""Latency of requests with new schemas: many distinct schemas at once, each compiled first.

Run as ``python -m benchmarks.grammar_load``. A server of the demo model gets requests with schemas generated from a
seed; each output is short, so that compiling and waiting for it are most of the time. ``--python`` names the
interpreter of another checkout, so that two can alternate.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from benchmarks.common.report import parser, table, write_json
from benchmarks.common.server import serving

NAMES = (
    "customer order item price name street city country zip phone email status created updated total quantity tags "
    "notes active score rating category priority owner team due version currency discount tax invoice shipment carrier"
).split()
STATES = ("open", "closed", "pending", "active", "archived", "draft", "sent", "paid")
TEXTS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"maxLength": 20},
    {"maxLength": 100},
    {"maxLength": 200},
    {"minLength": 1},
)
NUMBERS: tuple[dict[str, Any], ...] = ({}, {"minimum": 0}, {"minimum": 0, "maximum": 100})
FORMATS = ("date", "date-time", "uuid", "email")
TOKENS = 16


def schema(generator: random.Random) -> dict[str, Any]:
    """Generate a schema like an application's: an object of some fields, nested at most twice."""
    return _object(generator, 2, generator.randint(4, 10))


def _object(generator: random.Random, depth: int, count: int) -> dict[str, Any]:
    names = generator.sample(NAMES, count)
    return {
        "type": "object",
        "properties": {name: _field(generator, depth) for name in names},
        "required": names[: generator.randint(max(1, count - 2), count)],
        "additionalProperties": False,
    }


def _field(generator: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["text", "text", "text", "integer", "number", "boolean", "enum", "format"]
    match generator.choice(kinds + (["array", "object", "null"] if depth else [])):
        case "text":
            return {"type": "string", **generator.choice(TEXTS)}
        case "integer":
            return {"type": "integer", **generator.choice(NUMBERS)}
        case "enum":
            return {"enum": generator.sample(STATES, generator.randint(2, 6))}
        case "format":
            return {"type": "string", "format": generator.choice(FORMATS)}
        case "array":
            return {"type": "array", "items": _field(generator, depth - 1), **generator.choice([{}, {"maxItems": 10}])}
        case "object":
            return _object(generator, depth - 1, generator.randint(2, 6))
        case "null":
            return {"anyOf": [{"type": "null"}, _field(generator, depth - 1)]}
        case kind:
            return {"type": kind}


async def ask(url: str, schemas: list[dict[str, Any]], concurrency: int) -> tuple[list[float], int]:
    """Return the seconds of each request, and the number of failures."""
    semaphore = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600.0, limits=limits) as client:

        async def send(source: dict[str, Any]) -> tuple[float, bool]:
            async with semaphore:
                started = time.perf_counter()
                params = {"json_schema": json.dumps(source), "max_new_tokens": TOKENS}
                answer = await client.post("/generate", json={"text": "JSON: ", "sampling_params": params})
                return time.perf_counter() - started, answer.is_success

        answers = await asyncio.gather(*map(send, schemas))
    return [seconds for seconds, _ in answers], sum(not success for _, success in answers)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--schemas", type=int, default=60)
    options.add_argument("--concurrency", type=int, default=32)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--python", default=sys.executable, help="the interpreter that serves")
    args = options.parse_args()
    generator = random.Random(args.seed)
    schemas = [schema(generator) for _ in range(args.schemas)]
    with tempfile.TemporaryDirectory() as folder:
        program = (args.python, "-m", "sglang_plug", "serve")
        log = Path(folder) / "server.log"
        with serving(["--max-total-tokens", "65536"], log=log, program=program) as server:
            seconds, failures = asyncio.run(ask(server.url, schemas, args.concurrency))
    low, middle, high = quantiles(seconds, n=4)
    header = ("requests", "failures", "lower quartile s", "median s", "upper quartile s", "longest s")
    print(table(header, [(str(len(seconds)), failures, low, middle, high, max(seconds))]))
    write_json(args.json, {"options": vars(args) | {"json": None}, "seconds": seconds, "failures": failures})


if __name__ == "__main__":
    main()
