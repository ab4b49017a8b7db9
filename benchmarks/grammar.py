"""Cost and savings of structured outputs: decode steps with and without constraints, compiling, forced tokens.

Run as ``python -m benchmarks.grammar``. One engine with random weights alternates between plain and constrained
sequences, block by block, so that a noisy machine treats both alike. The vocabulary is synthetic: bytes, and pieces of
words with blanks and punctuation as real ones have. Steps that forced tokens save are counted with the demo model,
which has a tokenizer.
"""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.common.engine_driver import ListInbox, decode_seconds, nobody
from benchmarks.common.models import SHAPES, write_model
from benchmarks.common.report import parser, ratio, table, write_json
from sglang_plug import (
    Constraint,
    ConstraintError,
    EngineConfig,
    GrammarBackend,
    Plugins,
    Request,
    SamplingParams,
    Vocabulary,
)
from sglang_plug.clients.thread_client import ThreadClient
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions, ScheduleOptions
from sglang_plug.contracts.text.tokenizer import Tokenizer, TokenizerSource
from sglang_plug.engine.extensions.held_sequences import HeldSequences
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.structured_outputs.batch_grammars import Grammars
from sglang_plug_backends.structured_outputs.constraints import Constraints
from sglang_plug_backends.structured_outputs.extension import StructuredOutputs
from sglang_plug_backends.structured_outputs.grammar_guard import GrammarGuard

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 5},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "tags", "address"],
}
LONG: dict[str, Constraint] = {
    "strings": Constraint("json_schema", json.dumps({"type": "array", "items": {"type": "string"}, "minItems": 64})),
    "words": Constraint("regex", "([a-z]{1,12} )*"),
    "numbers": Constraint("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 64})),
}
"""Constraints whose outputs do not end while they are measured."""
COMPILED: dict[str, Constraint] = {
    "person": Constraint("json_schema", json.dumps(PERSON)),
    "any object": Constraint("json_object"),
    "max length 64": Constraint("json_schema", json.dumps({"type": "string", "maxLength": 64})),
    "expression": Constraint("regex", r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z"),
}
KEYS = ("first_name", "country_of_birth", "identification_number", "favourite_colour_of_the_month")
LONG_KEYS = {
    "type": "object",
    "properties": {name: {"enum": ["red", "green", "blue"]} for name in KEYS},
    "required": list(KEYS),
}
ORDER = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "maxLength": 20},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "delivery": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        "paid": {"type": "boolean"},
    },
    "required": ["customer", "quantity", "delivery", "paid"],
}
SETTLE = 0.05
"""Seconds until the outputs of the last step have arrived."""
SYLLABLES = "ba ko re ti an er in on st th ing ment pro con al is ou qu".split()
MARKS = (b'"', b'":', b'",', b"}", b"]", b", ", b': "', b'", "', b"\n", b"  ", b"(", b").")


def vocabulary(size: int, ranks: Path | None = None) -> Vocabulary:
    """Build a vocabulary of bytes, marks and words, or of the file ``ranks``: a line of base64 token and rank each."""
    special = [b"", b"", b""]
    if ranks is not None:
        results = [base64.b64decode(line.split()[0]) for line in ranks.read_text().splitlines()]
        return Vocabulary([*special, *results][:size], (2,))
    pieces = [*special, *(bytes([index]) for index in range(256)), *MARKS]
    pieces += [str(number).encode() for number in range(100)]
    for length in range(1, 6):
        for parts in product(SYLLABLES, repeat=length):
            word = "".join(parts).encode()
            pieces += [word, b" " + word]
            if len(pieces) >= size:
                return Vocabulary(pieces[:size], (2,))
    raise ValueError(f"no vocabulary of {size} tokens can be made up")


class Here:
    """Compiler in this process, which measures the backend without the pipe."""

    def __init__(self, backend: GrammarBackend) -> None:
        self._backend = backend

    def start(self) -> GrammarBackend:
        """Start at once."""
        return self._backend

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Compile with the backend."""
        return self._backend.compile(constraint)

    def interrupt(self) -> None:
        """Do nothing: compiling here cannot be interrupted."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class Bench:
    """One engine whose steps a script takes."""

    def __init__(self, shape: str, folder: Path, backend: str, words: Vocabulary, running: int, tokens: int) -> None:
        model = write_model(SHAPES[shape], folder)
        config = EngineConfig(
            model=ModelOptions(path=str(model), load_format="dummy", device="cpu"),
            cache=CacheOptions(max_total_tokens=running * tokens, prefix_cache="none"),
            schedule=ScheduleOptions(max_running_requests=running),
            backends=BackendOptions(grammar="none"),
            log_level="warning",
        )
        plugins = Plugins.discover()
        component = plugins.get("grammar", backend)
        self.backend: GrammarBackend = component.load()(words, component.settings())
        self.inbox = ListInbox()
        self.loop = build_engine(config, plugins, self.inbox, nobody, Heartbeat())
        self._use(Constraints(Here(self.backend)), words.size)

    def _use(self, constraints: Constraints, vocab_size: int) -> None:
        """Let the engine follow grammars of the synthetic vocabulary, which no tokenizer has."""
        extension = StructuredOutputs(constraints, Grammars(vocab_size), GrammarGuard(), vocab_size=vocab_size)
        points = extension_points({"structured-outputs": extension})
        self.loop.extensions = points
        self.loop.runner.extensions, self.loop.runner.sampling = points.forward, points.sampling
        self.loop.scheduler.requests, self.loop.scheduler.planning = points.requests, points.planning
        self.loop.held = HeldSequences(points.requests)
        extension.start()

    def steps(self, batch: int, constraint: Constraint | None, count: int) -> list[float]:
        """Return the seconds of ``count`` decode steps of ``batch`` sequences."""
        requests = []
        for row in range(batch):
            params = SamplingParams(max_new_tokens=count + 3, temperature=1.0, seed=row)
            requests.append(Request(id=str(row), tokens=(300 + row, 301), params=params, constraint=constraint))
        return decode_seconds(self.loop, self.inbox, requests, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of a decode step without a constraint, and the ratio with it."""

    constraint: str
    batch: int
    plain: float
    ratio: float
    quartiles: tuple[float, float]
    """Quartiles of the ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """Milliseconds to compile, to load the compiled grammar, and to begin an output of a cached grammar."""

    constraint: str
    cold: float
    load: float
    cached: float
    bytes: int


def measure(bench: Bench, name: str, batch: int, blocks: int, steps: int) -> Cost:
    """Alternate blocks; a block with the constraint is compared with the plain ones before and after it."""
    plain, ratios = [median(bench.steps(batch, None, steps))], []
    for _ in range(blocks):
        constrained = median(bench.steps(batch, LONG[name], steps))
        plain.append(median(bench.steps(batch, None, steps)))
        ratios.append(2 * constrained / (plain[-2] + plain[-1]))
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Cost(constraint=name, batch=batch, plain=median(plain) * 1e3, ratio=middle, quartiles=(low, high))


def compiling(backend: GrammarBackend, name: str, repeats: int) -> Compiling | None:
    """Return the best of several repeats without caching; ``None`` if the backend does not enforce the constraint."""

    def best(call: Callable[[], Any]) -> float:
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
        return min(times) * 1e3

    constraint = COMPILED[name]
    try:
        compiled = backend.compile(constraint)
    except ConstraintError:
        return None
    begin = backend.load(constraint, compiled)
    return Compiling(
        constraint=name,
        cold=best(lambda: backend.compile(constraint)),
        load=best(lambda: backend.load(constraint, compiled)),
        cached=best(begin),
        bytes=len(compiled),
    )


FORCED: dict[str, Constraint] = {
    "order": Constraint("json_schema", json.dumps(ORDER)),
    "long keys": Constraint("json_schema", json.dumps(LONG_KEYS)),
    "one sentence": Constraint("regex", r"Anna lives in (Paris|London), and she likes (tea|coffee)\."),
}
QUESTION = "Tell me about Anna."


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """One greedy output at batch size 1."""

    constraint: str
    jump: bool
    tokens: int
    steps: int
    seconds: float


async def jumps(jump: bool) -> list[Jump]:
    """Generate outputs of the demo model under each of ``FORCED``, with and without forced tokens."""
    config = EngineConfig(backends=BackendOptions(disable_jump_forward=not jump), log_level="warning")
    plugins = Plugins.discover()
    client = ThreadClient(config, plugins)
    path = Path((await client.start())["checkpoint_path"])
    tokenizer: Tokenizer = plugins.get("tokenizer", "huggingface").load()(TokenizerSource(path=path))
    prompt = tuple(tokenizer.encode(tokenizer.chat([{"role": "user", "content": QUESTION}]), special=False))
    steps: list[float] = []
    client.on_step(lambda stats: steps.append(stats.seconds) if stats.seconds else None)
    results = []
    for name, constraint in FORCED.items():
        for warm in (False, True):
            params = SamplingParams(temperature=0.0, max_new_tokens=200, stop_token_ids=tokenizer.eos_token_ids)
            request = Request(id=f"{name}{warm}", tokens=prompt, params=params, constraint=constraint)
            steps.clear()
            tokens = sum([len(output.tokens) async for output in client.submit(request)])
            await asyncio.sleep(SETTLE)
        results.append(Jump(constraint=name, jump=jump, tokens=tokens, steps=len(steps), seconds=sum(steps)))
    await client.close()
    return results


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--shape", choices=sorted(SHAPES), default="0.5B")
    options.add_argument("--backend", default="xgrammar")
    options.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    options.add_argument("--blocks", type=int, default=12)
    options.add_argument("--steps", type=int, default=8, help="steps of a block")
    options.add_argument("--ranks", type=Path, help="a vocabulary in the format of tiktoken instead of the made-up one")
    args = options.parse_args()
    words = vocabulary(SHAPES[args.shape].vocabulary, args.ranks)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args.shape, Path(folder), args.backend, words, max(args.batch), args.steps + 16)
        with torch.inference_mode():
            costs = [measure(bench, name, batch, args.blocks, args.steps) for name in LONG for batch in args.batch]
        bench.loop.close()
    rows = [(f"{cost.constraint}, {cost.batch}", cost.plain, cost.ratio, *cost.quartiles) for cost in costs]
    print(table(("outputs at once", "ms plain", "ratio", "lower quartile", "upper quartile"), rows))
    times = [compiled for name in COMPILED if (compiled := compiling(bench.backend, name, 3)) is not None]
    print()
    print(
        table(
            ("grammar", "ms cold", "ms load", "ms cached", "bytes"),
            [(item.constraint, item.cold, item.load, item.cached, item.bytes) for item in times],
        )
    )
    saved = [item for jump in (True, False) for item in asyncio.run(jumps(jump))]
    print()
    print(
        table(
            ("forced tokens", "jump", "tokens", "steps", "steps per token", "ms"),
            [
                (
                    jump.constraint,
                    str(jump.jump),
                    jump.tokens,
                    jump.steps,
                    ratio(jump.steps, jump.tokens),
                    jump.seconds * 1e3,
                )
                for jump in saved
            ],
        )
    )
    results = {"steps": costs, "compiling": times, "forced": saved}
    write_json(args.json, {"options": vars(args) | {"json": None}, **results})


if __name__ == "__main__":
    main()
