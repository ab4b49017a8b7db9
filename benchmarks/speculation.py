"""Gain of speculation with accepted drafts, and its cost with rejected ones.

Run as ``python -m benchmarks.speculation``. One engine with random weights. Runs with and without drafts alternate, and
the ratio is the median of those of neighbours, so that a noisy machine treats them alike. Requests come at once.

* ``greedy``: the most likely tokens. With random weights these soon repeat themselves, so that n-grams find them.
* ``random``: sampled at temperature 1, which repeats nothing: n-grams draft next to nothing.
* ``worst``: sampled likewise, with a drafter that always drafts and is never right.
* ``loop``: one token again and again, forced by a bias, so that n-grams are right except at the start.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.decode_options import add_options, choice_of, load_of
from benchmarks.common.report import parser, table, write_json
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import Drafter, Plugins, Request, SamplingParams, SequenceDrafter, StepExtension
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit, ToEngine
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug_backends.ngram.drafter import NGramDrafter
from sglang_plug_backends.ngram.settings import NGramSettings
from sglang_plug_backends.speculation.extension import Speculation

Guess = Callable[[Sequence[int], Sequence[int], int], Sequence[int]]
"""Draft function of prompt, output and the maximum number of tokens."""


class FunctionDrafter(Drafter):
    """Drafter that calls a function."""

    def __init__(self, guess: Guess) -> None:
        self._guess = guess

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        """Start a sequence that keeps its tokens."""
        return FunctionSequence(prompt, self._guess)


class FunctionSequence(SequenceDrafter):
    """One sequence."""

    def __init__(self, prompt: Sequence[int], guess: Guess) -> None:
        self._prompt, self._output, self._guess = tuple(prompt), list[int](), guess

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        """Return the function's drafts."""
        self._output += tokens
        return self._guess(self._prompt, self._output, max_draft_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One kind of run, with and without drafts. Rates are median output tokens per second while decoding."""

    gain: float
    """Rate with drafts divided by the rate without."""
    plain: float
    drafted: float
    proposed: int
    """Number of drafts in one run."""
    accepted: int
    same: bool
    """True if outputs were equal; in bfloat16 ties may be broken differently."""


class Bench:
    """An engine whose steps this script runs."""

    def __init__(self, choice: Choice, folder: Path) -> None:
        config = choice.config(folder)
        self._messages: list[ToEngine] = []
        self._outputs: dict[str, list[int]] = {}
        self._loop = build_engine(config, Plugins.discover(config.plugins), self, self._hear, Heartbeat())
        self._runs = 0
        self.vocabulary: int = self._loop.info["vocab_size"]

    def take(self, wait: bool, timeout: float | None = None) -> Iterable[ToEngine]:
        """Return the messages of the engine's inbox."""
        taken, self._messages = self._messages, []
        return taken

    def _hear(self, message: FromEngine) -> None:
        if not isinstance(message, StepOutputs):
            return
        for output in message.outputs:
            self._outputs.setdefault(output.id, []).extend(output.tokens)
        if message.stats is not None:
            self._proposed += message.stats.drafted_tokens
            self._accepted += message.stats.accepted_tokens

    def run(
        self, load: Load, params: SamplingParams, drafter: Drafter | None, max_draft_tokens: int, step_tokens: int
    ) -> Run:
        """Decode ``load`` once."""
        self._outputs, self._proposed, self._accepted, self._runs = {}, 0, 0, self._runs + 1
        scheduler = self._loop.scheduler
        extensions: dict[str, StepExtension] = {}
        if drafter is not None:
            options = {"max_draft_tokens": max_draft_tokens, "step_tokens": step_tokens, "vocabulary": self.vocabulary}
            extensions["speculation"] = Speculation(drafter, name="the drafter", **options)
        points = extension_points(extensions)
        scheduler.requests, scheduler.planning = points.requests, points.planning
        for number, tokens in enumerate(prompts(load)):
            own = dataclasses.replace(params, max_new_tokens=load.output_len, seed=number)
            self._messages.append(Submit(Request(id=f"{self._runs}-{number}", tokens=tuple(tokens), params=own)))
        while len(self._outputs) < load.requests:
            self._loop.step()
        tokens_before, started = sum(map(len, self._outputs.values())), time.perf_counter()
        while scheduler.busy:
            self._loop.step()
        seconds = time.perf_counter() - started
        scheduler.flush()
        outputs = list(self._outputs.values())
        return Run((sum(map(len, outputs)) - tokens_before) / seconds, outputs, self._proposed, self._accepted)


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    rate: float
    outputs: list[list[int]]
    proposed: int
    accepted: int


def measure(bench: Bench, load: Load, rounds: int, max_draft_tokens: int, step_tokens: int) -> dict[str, Result]:
    """Measure every kind of run."""
    known: list[tuple[tuple[int, ...], list[int]]] = []

    def wrong(prompt: Sequence[int], output: Sequence[int], count: int) -> Sequence[int]:
        (answer,) = [item for head, item in known if head == prompt]
        return [(token + 1) % bench.vocabulary for token in answer[len(output) : len(output) + count]]

    ngram = NGramDrafter(NGramSettings())
    kinds: dict[str, tuple[SamplingParams, Drafter]] = {
        "greedy": (SamplingParams(temperature=0.0), ngram),
        "loop": (SamplingParams(temperature=0.0, logit_bias={7: 1000.0}), ngram),
        "random": (SamplingParams(), ngram),
        "worst": (SamplingParams(), FunctionDrafter(wrong)),
    }
    results = {}
    for name, (params, drafter) in kinds.items():
        warm = bench.run(load, params, None, max_draft_tokens, step_tokens)
        known[:] = zip(map(tuple, prompts(load)), warm.outputs, strict=True)
        runs: dict[bool, list[Run]] = {False: [], True: []}
        for _ in range(rounds):
            for drafted, kept in runs.items():
                kept.append(bench.run(load, params, drafter if drafted else None, max_draft_tokens, step_tokens))
        plain, drafted_runs = runs[False], runs[True]
        results[name] = Result(
            gain=statistics.median(two.rate / item.rate for item, two in zip(plain, drafted_runs, strict=True)),
            plain=statistics.median(jump.rate for jump in plain),
            drafted=statistics.median(drafted_run.rate for drafted_run in drafted_runs),
            proposed=drafted_runs[-1].proposed,
            accepted=drafted_runs[-1].accepted,
            same=all(drafted_run.outputs == warm.outputs for drafted_run in drafted_runs),
        )
        print(f"{name}: {results[name].gain:.2f}", file=sys.stderr, flush=True)
    return results


def show(results: dict[str, Result]) -> str:
    """Format one line for each kind."""
    header = ("outputs", "tok/s without", "tok/s with", "ratio", "drafted", "accepted", "same")
    rows = [
        (
            name,
            result.plain,
            result.drafted,
            result.gain,
            str(result.proposed),
            str(result.accepted),
            "yes" if result.same else "no",
        )
        for name, result in results.items()
    ]
    return table(header, rows)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    add_options(options, requests=1, output_len=128)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--draft-tokens", type=int, default=8)
    options.add_argument("--step-tokens", type=int, default=16)
    options.add_argument("--disable-cuda-graph", action="store_true")
    args = options.parse_args()
    choice = dataclasses.replace(choice_of(args), disable_cuda_graph=args.disable_cuda_graph)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(choice, Path(folder))
        result = measure(bench, load_of(args), args.rounds, args.draft_tokens, args.step_tokens)
    print(show(result))
    write_json(args.json, result)


if __name__ == "__main__":
    main()
