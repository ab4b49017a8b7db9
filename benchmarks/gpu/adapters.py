"""Adapters on an accelerator: correctness against the host, and their cost in a decode step."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.adapters import Bench
from benchmarks.common.models import SHAPES
from benchmarks.gpu.executors import DECODE_GRAPHS, decode_graphs, without
from benchmarks.load import Load, prompts
from benchmarks.offline import Choice
from sglang_plug import LogprobOptions, Request, SamplingParams
from sglang_plug.engine.messages.api_messages import Submit

SHAPE = SHAPES["tiny"]
ADAPTERS, RANK, SIZE = 3, 8, 0.3
SERVED_RANK, BATCHES, MAX_TOKENS = 16, (1, 16, 64), 16384
"""Rank of the adapters in timed steps, batch sizes, and output tokens."""
MAX_DIFFERENCE, MIN_EFFECT = 2e-3, 0.1
"""Maximum log-probability difference between device and host, and minimum effect of an adapter."""

Result = Mapping[str, list[float]]


def adapters_are_right(device: str, backend: str) -> dict[str, Any]:
    """Compare float32 log-probabilities with several adapters in one batch between ``device`` and the host.

    Raises ``AssertionError`` if they differ, if an adapter changes nothing, or if steps with adapters are not captured.
    """
    on_device, on_host = _logprobs(device, backend, "auto"), _logprobs("cpu", "torch", "torch")
    if {name: len(item) for name, item in on_device.items()} != {name: len(item) for name, item in on_host.items()}:
        raise AssertionError("outputs are not equally long")
    worst = max(
        abs(item - other) for name in on_host for item, other in zip(on_device[name], on_host[name], strict=True)
    )
    if not worst <= MAX_DIFFERENCE:
        raise AssertionError(f"log-probabilities differ by {worst:.2g} from the host's, more than {MAX_DIFFERENCE}")
    plain = on_host["None"]
    effects = [max(abs(a - b) for a, b in zip(on_host[name], plain, strict=True)) for name in on_host if name != "None"]
    if min(effects) < MIN_EFFECT:
        raise AssertionError(f"an adapter changes log-probabilities by no more than {min(effects):.2g}")
    return {"adapters": len(effects), "worst": worst, "effects": effects}


def _logprobs(device: str, backend: str, kernels: str) -> Result:
    """Return log-probabilities of one prompt with each adapter and none, and while decoding in other rows."""
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
        graphs = decode_graphs(bench.loop.runner)
        if graphs is not None and graphs.captured and device.startswith("cuda") and not graphs.variants.captured:
            raise AssertionError("steps with adapters are not captured; the log tells why")
    return {
        name: [prompt_logprob.logprob or 0.0 for prompt_logprob in (*output.prompt_logprobs, *output.logprobs)]
        for name, output in outputs.items()
    }


def adapter_steps(device: str, shape: str, backend: str, *, batches: Sequence[int] = BATCHES) -> dict[str, Any]:
    """Time decode steps in milliseconds for each batch size: without, with one and with several adapters.

    Each is both replayed from graphs and launched kernel by kernel.
    """
    choice = Choice(
        shape=SHAPES[shape], device=device, attention=backend, running=max(batches), max_total_tokens=MAX_TOKENS
    )
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(choice, Path(folder), adapters=ADAPTERS, rank=SERVED_RANK)
        for batch in batches:
            load = Load(url="", requests=batch, input_len=32, output_len=48, vocabulary=SHAPES[shape].vocabulary)
            kinds: dict[str, Sequence[str | None]] = {"none": [None], "one": bench.names[:1], "several": bench.names}
            times = {name: 1e3 * bench.step(load, names) for name, names in kinds.items()}
            executors = bench.loop.runner.executors
            if decode_graphs(bench.loop.runner) is not None:
                bench.loop.runner.executors = without(bench.loop.runner, DECODE_GRAPHS)
                times["several, without graphs"] = 1e3 * bench.step(load, bench.names)
                bench.loop.runner.executors = executors
            results[str(batch)] = times
    return results
