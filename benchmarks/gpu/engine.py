"""An engine whose decode steps a script runs, to time the shares of device and host.

With and without overlap (``--disable-overlap-schedule``): without, the device is idle while the host plans and sends
outputs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common.engine_driver import ListInbox, nobody
from benchmarks.common.models import Shape
from benchmarks.gpu.executors import decode_graphs
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import (
    AllowedTokens,
    LogprobOptions,
    Output,
    PendingMask,
    Plugins,
    Request,
    SamplingParams,
    SamplingPhase,
    SequenceView,
    StepExtension,
    TokenDecision,
)
from sglang_plug.contracts.text.vocabulary import MASK_BITS
from sglang_plug.engine.loop import EngineLoop
from sglang_plug.engine.messages.api_messages import FromEngine, StepOutputs, Submit
from sglang_plug.engine.sequences.sequence import Sequence as EngineSequence
from sglang_plug.engine.startup.build import build_engine
from sglang_plug.engine.watchdog import Heartbeat
from sglang_plug.ops.host_device_copy import AsyncHostCopy

BATCHES = (8, 32)
"""Batch sizes measured besides the full load."""
KINDS: tuple[tuple[dict[str, Any], LogprobOptions | None], ...] = (
    ({"temperature": 0.0}, None),
    ({"temperature": 0.0}, LogprobOptions(start=0, top=2)),
    ({"temperature": 1.0, "seed": 1}, None),
    ({"temperature": 0.8, "seed": 2, "top_p": 0.9, "top_k": 50, "min_p": 0.01}, LogprobOptions()),
    ({"temperature": 0.0, "frequency_penalty": 1.0, "presence_penalty": 0.5}, None),
    ({"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "max_new_tokens": 60}, None),
    ({"temperature": 0.0, "logit_bias": {5: 2.0}, "min_new_tokens": 10, "stop_token_ids": ()}, None),
    ({"temperature": 0.0, "max_new_tokens": 1}, None),
)
"""Sampling parameters of one request each."""
CONSTRAINED = 3
"""Number of kinds of which one more request is constrained."""
STRIPES = 3
MIN_ALIKE = 0.6
"""Minimum share of the tokens before the first difference on an accelerator.

There a sequence's numbers depend in their last bits on the rest of the batch, which may differ for a step with overlap.
"""
SETTLED = 3
"""Decode steps before the timed ones, and left over after them."""


class StripedMasks(StepExtension, SamplingPhase):
    """Allows constrained sequences only tokens with a certain remainder, which depends on the number of tokens so far.

    It is set up instead of structured outputs, so that no tokenizer is needed.
    """

    def __init__(self, vocabulary: int) -> None:
        tokens = torch.arange(-(-vocabulary // MASK_BITS) * MASK_BITS).view(-1, MASK_BITS)
        bits = torch.tensor([1 << bit for bit in range(MASK_BITS)])
        rows = [
            (((tokens % STRIPES == remainder) & (tokens < vocabulary)) * bits).sum(1) for remainder in range(STRIPES)
        ]
        self._rows = [row.to(torch.int32) for row in rows]

    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        """Return the stripes of the next tokens of constrained sequences."""
        rows = [row for row, sequence in enumerate(sequences) if sequence.constrained]
        if not rows:
            return None
        mask = torch.stack([self._rows[sequences[row].generated % STRIPES] for row in rows])
        return ReadyMask(AllowedTokens(rows, mask))

    def sampled(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        """Reject tokens that are not in their stripe."""
        return {
            row: TokenDecision(rejected=True)
            for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
            if sequence.constrained and token >= 0 and token % STRIPES != sequence.generated % STRIPES
        }


@dataclass(frozen=True, slots=True)
class ReadyMask:
    """A ``PendingMask`` whose result is ready."""

    tokens: AllowedTokens

    def result(self) -> AllowedTokens:
        """Return the mask."""
        return self.tokens


class Stopwatch:
    """Times a function on the device, or on the host without one."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self._marks: list[tuple[Any, Any]] = []
        self._seconds: list[float] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``function`` to be timed at each call."""

        def on_device(*args: Any, **named: Any) -> Any:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            result = function(*args, **named)
            after.record()
            self._marks.append((before, after))
            return result

        def on_host(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = function(*args, **named)
            self._seconds.append(time.perf_counter() - started)
            return result

        return on_device if self._cuda else on_host

    def take(self) -> list[float]:
        """Return the seconds of each call since the last ``take``. Synchronises the device."""
        if self._cuda:
            torch.cuda.synchronize()
            self._seconds = [before.elapsed_time(after) / 1e3 for before, after in self._marks]
        taken, self._seconds, self._marks = self._seconds, [], []
        return taken


def decode_steps(device: str, shape: Shape, backend: str, count: int, prompt: int, output: int) -> dict[str, Any]:
    """Measure decode steps of ``count`` requests with ``_measured``.

    With ``batches`` also smaller batches and partly constrained ones, each with and without overlap.
    """
    choice = Choice(
        shape=shape,
        device=device,
        attention=backend,
        running=count,
        max_total_tokens=2 * count * (prompt + output),
    )
    watch = Stopwatch(device)
    inbox = ListInbox()
    with tempfile.TemporaryDirectory() as folder:
        config = choice.config(Path(folder))
        loop = build_engine(config, Plugins.discover(), inbox, nobody, Heartbeat())
        graphed = _watch(loop, watch)
        results = []
        for batch in (*(size for size in BATCHES if size < count), count):
            load = Load(url="", requests=batch, input_len=prompt, output_len=output, vocabulary=shape.vocabulary)
            for overlap in (False, True):
                loop.pipeline.overlap = overlap
                results.append(_measured(loop, inbox, watch, load))
        whole = results[-1]
        _constrain(loop, shape.vocabulary)
        few = min(BATCHES[0], count)
        load = Load(url="", requests=few, input_len=prompt, output_len=output, vocabulary=shape.vocabulary)
        for overlap in (False, True):
            loop.pipeline.overlap = overlap
            results.append({**_measured(loop, inbox, watch, load), "constrained": True})
    return {"graphs": graphed, **whole, "batches": results}


def overlap_changes_nothing(device: str, shape: Shape, backend: str, *, graphs: bool) -> dict[str, Any]:
    """Raise ``AssertionError`` unless simultaneous requests of all kinds get equal outputs with and without overlap.

    Differences by rounding are allowed where it depends on the batch: see ``MIN_ALIKE``.
    """
    choice = Choice(
        shape=shape,
        device=device,
        attention=backend,
        running=len(KINDS) + CONSTRAINED,
        max_total_tokens=4096,
        chunk=64,
        disable_cuda_graph=not graphs,
    )
    inbox, received, samples = ListInbox(), list[Output](), []
    with tempfile.TemporaryDirectory() as folder:

        def receive(message: FromEngine) -> None:
            received.extend(message.outputs if isinstance(message, StepOutputs) else ())

        loop = build_engine(choice.config(Path(folder)), Plugins.discover(), inbox, receive, Heartbeat())
        _constrain(loop, shape.vocabulary, first=len(KINDS))
        kinds = (*KINDS, *((options, None) for options, _ in KINDS[:CONSTRAINED]))
        for overlap in (False, True):
            loop.pipeline.overlap = overlap
            for number, (options, logprobs) in enumerate(kinds):
                params = SamplingParams(**{"max_new_tokens": 24 + number, **options})
                prompt = tuple(range(number, 40 + 7 * number))
                inbox.messages.append(Submit(Request(id=str(number), tokens=prompt, params=params, logprobs=logprobs)))
            loop.step()
            while loop.busy:
                loop.step()
            loop.scheduler.flush()
            samples.append(
                {str(number): [item for item in received if item.id == str(number)] for number in range(len(kinds))}
            )
            received.clear()
    alike = [agreement(kinds[int(id)], outputs, samples[1][id]) for id, outputs in samples[0].items()]
    share = sum(same for same, _ in alike) / sum(count for _, count in alike)
    if share < (1.0 if device == "cpu" else MIN_ALIKE):
        raise AssertionError(f"only {share:.0%} of the tokens came before the first that was another one: {alike}")
    tokens = sum(len(output.tokens) for result in samples[1].values() for output in result)
    return {"requests": len(kinds), "tokens": tokens, "alike": share}


def agreement(kind: object, outputs: list[Output], others: list[Output]) -> tuple[int, int]:
    """Count the tokens before the first difference, and those of the longer output. Raises if a request failed."""
    for item in (outputs, others):
        if item[-1].finish is None or item[-1].finish.reason == "error":
            raise AssertionError(f"{kind}: {item[-1].finish}")
    first, second = ([token for output in entry for token in output.tokens] for entry in (outputs, others))
    same = next((index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if same is None and (len(first) != len(second) or outputs[-1].finish != others[-1].finish):
        raise AssertionError(f"{kind}: {outputs[-1].finish} after {len(first)} became {others[-1].finish}")
    return len(first) if same is None else same, max(len(first), len(second))


def _constrain(loop: EngineLoop, vocabulary: int, first: int = 0) -> None:
    """Constrain each request whose id is a number from ``first`` on."""
    add, masks = loop.scheduler.add, StripedMasks(vocabulary)
    loop.runner.sampling = replace(loop.runner.sampling, allowed=(masks.allowed,), sampled=(masks.sampled,))

    def constrained(sequence: EngineSequence) -> None:
        sequence.sampling.constrained = int(sequence.request.id) >= first
        add(sequence)

    loop.scheduler.add = constrained  # type: ignore[method-assign]


def _measured(loop: EngineLoop, inbox: ListInbox, watch: Stopwatch, load: Load) -> dict[str, Any]:
    """Average over the steps in which all requests decode, in seconds.

    ``step`` is the whole step; ``device`` the time of the replayed graph (without graphs: of the model), and in the
    rest of the step the device does next to nothing; ``host`` is the time in which the host does not wait for tokens.
    """
    params = SamplingParams(max_new_tokens=load.output_len, temperature=0.0)
    for number, tokens in enumerate(prompts(load)):
        inbox.messages.append(Submit(Request(id=str(number), tokens=tuple(tokens), params=params)))
    while inbox.messages or loop.scheduler.waiting or loop.scheduler.counters.decode_sequences < load.requests:
        loop.step()
    for _ in range(SETTLED):
        loop.step()
    steps = min(item.limit - len(item.tokens) for item in loop.scheduler.running) - SETTLED
    waited = Stopwatch("host")
    with patch.object(AsyncHostCopy, "read", waited.timed(AsyncHostCopy.read)):
        watch.take()
        started = time.perf_counter()
        for _ in range(steps):
            loop.step()
        wall = (time.perf_counter() - started) / steps
        work = statistics.fmean(watch.take())
    if len(loop.scheduler.running) != load.requests:
        raise AssertionError("an output ended while it was measured")
    while loop.busy:
        loop.step()
    host = wall - sum(waited.take()) / steps
    return {
        "batch": load.requests,
        "overlap": loop.pipeline.overlap,
        "steps": steps,
        "step": wall,
        "device": work,
        "host": host,
        "host_share": host / work,
        "idle_share": max(0.0, wall - work) / wall,
    }


def _watch(loop: EngineLoop, watch: Stopwatch) -> bool:
    """Time the graph replays, or the model if there are none; return True if there are."""
    graphs = decode_graphs(loop.runner)
    if graphs is None or not graphs.captured:
        model: Any = loop.runner.components.model
        model.forward = watch.timed(model.forward)
        return False
    for captured in graphs.captured.values():
        captured.replay = watch.timed(captured.replay)
    return True
