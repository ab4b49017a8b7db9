"""Adapters on an accelerator: are they what they are on the host?"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
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
MOST_DIFFERENCE, LEAST_EFFECT = 2e-3, 0.1
"""Of a log-probability: between device and host, and that an adapter makes."""

Found = Mapping[str, list[float]]


def adapters_are_right(device: str, backend: str) -> dict[str, Any]:
    """Prompts' log-probabilities in float32, with several adapters in one batch, on ``device`` and on the host.

    Raises ``AssertionError`` if they differ, or if an adapter changes nothing.
    """
    there, here = _logprobs(device, backend, "auto"), _logprobs("cpu", "torch", "torch")
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
    return {name: [one.logprob or 0.0 for one in output.prompt_logprobs] for name, output in outputs.items()}
