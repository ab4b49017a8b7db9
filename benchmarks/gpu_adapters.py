"""Adapters on an accelerator: are they what they are on the host, and what do they cost a decode step?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.adapters import Bench
from benchmarks.load import Load, prompts
from benchmarks.models import SHAPES
from benchmarks.offline import Choice
from sglang_plug import LogprobOptions, Request, SamplingParams
from sglang_plug.engine.messages import Submit

SHAPE = SHAPES["tiny"]
ADAPTERS, RANK, SIZE = 3, 8, 0.3
SERVED_RANK, BATCHES, MOST_TOKENS = 16, (1, 16, 64), 16384
"""Of the adapters whose steps are timed, which are so many at once."""
MOST_DIFFERENCE, LEAST_EFFECT = 2e-3, 0.1
"""Of a log-probability: between device and host, and that an adapter makes."""

Found = Mapping[str, list[float]]


def adapters_are_right(device: str, backend: str) -> dict[str, Any]:
    """Log-probabilities of prompts and outputs in float32, with several adapters in one batch, on ``device`` and on the
    host.

    Raises ``AssertionError`` if they differ, if an adapter changes nothing, or if steps with adapters are not captured.
    """
    there, here = _logprobs(device, backend, "auto"), _logprobs("cpu", "torch", "torch")
    if {name: len(one) for name, one in there.items()} != {name: len(one) for name, one in here.items()}:
        raise AssertionError("outputs are not equally long")
    worst = max(abs(one - other) for name in here for one, other in zip(there[name], here[name], strict=True))
    if not worst <= MOST_DIFFERENCE:
        raise AssertionError(f"log-probabilities differ by {worst:.2g} from the host's, more than {MOST_DIFFERENCE}")
    plain = here["None"]
    effects = [max(abs(a - b) for a, b in zip(here[name], plain, strict=True)) for name in here if name != "None"]
    if min(effects) < LEAST_EFFECT:
        raise AssertionError(f"an adapter changes log-probabilities by no more than {min(effects):.2g}")
    return {"adapters": len(effects), "worst": worst, "effects": effects}


def _logprobs(device: str, backend: str, kernels: str) -> Found:
    """Of one prompt with each adapter and with none, in one batch, then decoding with adapters in other rows."""
    choice = Choice(
        shape=SHAPE, device=device, attention=backend, kernels=kernels, dtype="float32", max_total_tokens=1024, chunk=32
    )
    (tokens,) = prompts(Load(url="", requests=1, input_len=48, vocabulary=SHAPE.vocabulary))
    params = SamplingParams(max_new_tokens=4, temperature=0.0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(choice, Path(folder), adapters=ADAPTERS, rank=RANK, size=SIZE)
        for name in (None, *bench.names):
            request = Request(
                id=str(name), tokens=tuple(tokens), params=params, adapter=name, logprobs=LogprobOptions(start=1)
            )
            bench.inbox.messages.append(Submit(request))
        outputs = bench.finish()
        graphs = bench.loop.runner.graphs
        if graphs is not None and graphs.captured and device.startswith("cuda") and not graphs.adapted:
            raise AssertionError("steps with adapters are not captured; the log tells why")
    return {
        name: [one.logprob or 0.0 for one in (*output.prompt_logprobs, *output.logprobs)]
        for name, output in outputs.items()
    }


def adapter_steps(device: str, shape: str, backend: str) -> dict[str, Any]:
    """Milliseconds of a decode step for some batch sizes: of the model alone, and with one adapter and several, both
    replayed from graphs and launched kernel by kernel."""
    choice = Choice(
        shape=SHAPES[shape], device=device, attention=backend, running=max(BATCHES), max_total_tokens=MOST_TOKENS
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(choice, Path(folder), adapters=ADAPTERS, rank=SERVED_RANK)
        for batch in BATCHES:
            load = Load(url="", requests=batch, input_len=32, output_len=48, vocabulary=SHAPES[shape].vocabulary)
            kinds: dict[str, Sequence[str | None]] = {"none": [None], "one": bench.names[:1], "several": bench.names}
            times = {name: 1e3 * bench.step(load, names) for name, names in kinds.items()}
            graphs = bench.loop.runner.graphs
            if graphs is not None:
                graphs.adapters, before = None, graphs.adapters
                times["several, without graphs"] = 1e3 * bench.step(load, bench.names)
                graphs.adapters = before
            found[str(batch)] = times
    return found
