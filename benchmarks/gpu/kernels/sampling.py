"""Sampling on the device: correctness, absence of synchronisation, and tokens per second."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from sglang_plug import AllowedTokens, Kernels, LogprobOptions, Plugins, Request, SamplingParams
from sglang_plug.engine.sampling.processors import LogitsProcessors
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug.testing import check_sampling

VOCABULARY = 128_256
BATCHES = (1, 32, 128, 256)
KINDS: Mapping[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k, top-p, min-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.01},
    "penalties": {"temperature": 0.8, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "bias, early stop": {"logit_bias": {5: 1.0}, "stop_token_ids": (2,), "min_new_tokens": 100},
}
WARM_UPS, SECONDS = 3, 0.5


@torch.inference_mode()
def sampling_is_right(device: str) -> dict[str, Any]:
    """Run the sampling conformance tests on Triton's kernels; synchronising with the device raises."""
    kernels = _kernels(device)
    for width, draws in ((5, 200), (70, 1000), (5000, 4000), (VOCABULARY, 2000)):
        check_sampling(kernels, device=device, width=width, draws=draws)
    sampler = Sampler(kernels)
    for kind in KINDS:
        for mixed in (False, True):
            rows = _rows(device, 4, kind) + _rows(device, 2, "greedy")
            rows += _rows(device, 2, "temperature", LogprobOptions(top=3, ids=(7,)))
            rows = rows if mixed else rows[:4]
            logits = torch.randn(len(rows), VOCABULARY, device=device)
            mask = torch.full((2, -(-VOCABULARY // 32)), -1, dtype=torch.int32)
            for allowed in (None, AllowedTokens([0, 2], mask)):
                sampler.sample(logits.clone(), rows, allowed).results()  # compiles
                copies = [logits.clone() for _ in range(2)]
                with _no_waiting(device):
                    sampled = [sampler.sample(copy, rows, allowed, ahead=[1] * len(rows)) for copy in copies]
                    other = sampler.sample(copies[0], rows[::-1])
                _check_tokens([*sampled, other])
    return {"kinds": list(KINDS), "waits": 0}


@torch.inference_mode()
def sampling_speed(device: str) -> dict[str, Any]:
    """Return tokens per second by kind and batch size, with Triton's kernels and with the definitions."""
    results: dict[str, Any] = {}
    for kind in KINDS:
        for batch in BATCHES:
            logits = torch.randn(batch, VOCABULARY, device=device) * 3
            rates = {
                kernels.name: _rate(Sampler(kernels), logits, _rows(device, batch, kind))
                for kernels in (_kernels(device), Kernels())
            }
            results[f"{kind}, batch {batch}"] = rates
    return results


def _rate(sampler: Sampler, logits: torch.Tensor, rows: list[Sequence]) -> float:
    copy = torch.empty_like(logits)
    for _ in range(WARM_UPS):
        sampler.sample(copy.copy_(logits), rows).results()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        sampled = [sampler.sample(copy.copy_(logits), rows) for _ in range(4)]
        sampled[-1].results()
        steps += len(sampled)
    return steps * len(rows) / (time.perf_counter() - started)


def _kernels(device: str) -> Kernels:
    from sglang_plug_backends.triton.kernel_set import build  # only where Triton is

    return build() if device.startswith("cuda") else Kernels()


@cache
def _processors(device: str) -> LogitsProcessors:
    plugins = Plugins.discover()
    return LogitsProcessors.build(plugins, RequestFields.of(plugins), VOCABULARY, torch.device(device))


def _rows(device: str, count: int, kind: str, logprobs: LogprobOptions | None = None) -> list[Sequence]:
    requests = [
        Request(id=f"{kind}-{row}", tokens=(1, 2, 3), params=SamplingParams(seed=row, **KINDS[kind]), logprobs=logprobs)
        for row in range(count)
    ]
    sequences = [Sequence.of(request, 1 << 20) for request in requests]
    for sequence in sequences:
        sequence.sampling.processors = _processors(device).admit(sequence.request)
    return sequences


def _check_tokens(sampled: list[LaunchedStep]) -> None:
    for result in sampled:
        tokens = [row.token for row in result.results()]
        if not all(token is not None and 0 <= token < VOCABULARY for token in tokens):
            raise AssertionError(f"tokens {tokens} are not in the vocabulary")


@contextmanager
def _no_waiting(device: str) -> Iterator[None]:
    """Let torch raise on synchronisation with a CUDA device."""
    if not device.startswith("cuda"):
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")  # type: ignore[no-untyped-call]
