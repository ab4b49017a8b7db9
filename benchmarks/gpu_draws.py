"""Sampling on the device: is it right, does the host wait for nothing, how many tokens a second are drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from sglang_plug import Kernels, LogprobOptions, Request, SamplingParams
from sglang_plug.engine.masks import Allowed
from sglang_plug.engine.sampler import Drawn, Sampler
from sglang_plug.engine.sequence import Sequence
from sglang_plug.testing import check_drawing

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
def draws_are_right(device: str) -> dict[str, Any]:
    """The drawing kit on Triton's kernels; and ``draw`` of every kind, where waiting for the device raises."""
    kernels = _kernels(device)
    for width, draws in ((5, 200), (70, 1000), (5000, 4000), (VOCABULARY, 2000)):
        check_drawing(kernels, device=device, width=width, draws=draws)
    sampler = Sampler(kernels)
    for kind in KINDS:
        for mixed in (False, True):
            rows = _rows(4, kind) + (_rows(2, "greedy") + _rows(2, "temperature", LogprobOptions(top=3, ids=(7,))))
            rows = rows if mixed else rows[:4]
            logits = torch.randn(len(rows), VOCABULARY, device=device)
            mask = torch.full((2, -(-VOCABULARY // 32)), -1, dtype=torch.int32)
            for allowed in (None, Allowed([0, 2], mask)):
                sampler.draw(logits.clone(), rows, allowed).read()  # compiles
                copies = [logits.clone() for _ in range(2)]
                with _no_waiting(device):
                    drawn = [sampler.draw(one, rows, allowed, ahead=[1] * len(rows)) for one in copies]
                    other = sampler.draw(copies[0], rows[::-1])
                _check_tokens([*drawn, other])
    return {"kinds": list(KINDS), "waits": 0}


@torch.inference_mode()
def draws(device: str) -> dict[str, Any]:
    """Tokens a second, by kind and batch size: with Triton's kernels, and with the definitions beside them."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        for batch in BATCHES:
            logits = torch.randn(batch, VOCABULARY, device=device) * 3
            rates = {
                made.name: _rate(Sampler(made), logits, _rows(batch, kind)) for made in (_kernels(device), Kernels())
            }
            found[f"{kind}, batch {batch}"] = rates
    return found


def _rate(sampler: Sampler, logits: torch.Tensor, rows: list[Sequence]) -> float:
    copy = torch.empty_like(logits)
    for _ in range(WARM_UPS):
        sampler.draw(copy.copy_(logits), rows).read()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        drawn = [sampler.draw(copy.copy_(logits), rows) for _ in range(4)]
        drawn[-1].read()
        steps += len(drawn)
    return steps * len(rows) / (time.perf_counter() - started)


def _kernels(device: str) -> Kernels:
    from sglang_plug_backends.triton.kernels import build  # only where Triton is

    return build() if device.startswith("cuda") else Kernels()


def _rows(count: int, kind: str, logprobs: LogprobOptions | None = None) -> list[Sequence]:
    requests = [
        Request(id=f"{kind}-{row}", tokens=(1, 2, 3), params=SamplingParams(seed=row, **KINDS[kind]), logprobs=logprobs)
        for row in range(count)
    ]
    return [Sequence.of(request, 1 << 20) for request in requests]


def _check_tokens(found: list[Drawn]) -> None:
    for one in found:
        tokens = one.read()[0]
        if not all(0 <= token < VOCABULARY for token in tokens):
            raise AssertionError(f"tokens {tokens} are not in the vocabulary")


@contextmanager
def _no_waiting(device: str) -> Iterator[None]:
    """Where the host would wait for a CUDA device torch raises."""
    if not device.startswith("cuda"):
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")  # type: ignore[no-untyped-call]
