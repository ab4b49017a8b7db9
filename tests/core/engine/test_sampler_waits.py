"""Sampling on a device that computes by itself: nothing is read from it, and no copy to it is waited for.

The device is ``meta``, whose tensors have no values to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sglang_plug import LogprobOptions, Request, SamplingParams
from sglang_plug.engine.masks import Allowed
from sglang_plug.engine.sampler import Sampler
from sglang_plug.engine.sequence import Sequence

WIDTH = 2500
META = torch.device("meta")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.1},
    "all cuts": {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1},
    "bias": {"logit_bias": {5: 1.0, 9: -3.0}},
    "early stop": {"stop_token_ids": (3, 4), "min_new_tokens": 2},
}


class Asynchronous(TorchDispatchMode):
    """Raises if something would make the host wait for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        devices = {one.device.type for one in tensors if one.dim() > 0}
        name = str(func)
        if name == "aten._to_copy.default" and kwargs.get("device") == META and devices == {"cpu"}:
            assert kwargs.get("non_blocking"), "a copy to the device is waited for"
        else:
            assert len(devices) <= 1, f"{name} mixes devices, which copies and waits"
        if "meta" in devices:
            found = func(*args, **kwargs)
            outs = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
            assert all(one.device.type == "meta" for one in outs), f"{name} reads from the device"
            assert not any(one.dtype == torch.bool for one in _indices(name, args)), f"{name} counts on the device"
            return found
        return func(*args, **kwargs)


def _indices(name: str, args: Any) -> list[Tensor]:
    return [one for one in args[1] if one is not None] if name.startswith(("aten.index.", "aten.index_put")) else []


class NoLists(TorchFunctionMode):
    """Raises if a tensor on the device is made of numbers, which copies and waits unseen by what torch dispatches."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            assert torch.device(kwargs.get("device") or "cpu") != META, "torch.tensor waits for the device"
        if func in (Tensor.__getitem__, Tensor.__setitem__) and args[0].device == META:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(part, list) for part in parts), "an index of numbers waits for the device"
        return func(*args, **kwargs)


@contextmanager
def asynchronous() -> Iterator[None]:
    """The device computes by itself, and whoever waits for it fails."""
    with NoLists(), Asynchronous():
        yield


def sequence(**params: Any) -> Sequence:
    logprobs = params.pop("logprobs", None)
    request = Request(id="r", tokens=(1, 2, 3), params=SamplingParams(seed=1, **params), logprobs=logprobs)
    return Sequence.of(request, 1 << 20)


def draw(sampler: Sampler, sequences: list[Sequence], allowed: Allowed | None = None) -> None:
    logits = torch.zeros(len(sequences), WIDTH, device=META, dtype=torch.bfloat16)
    with asynchronous():
        drawn = sampler.draw(logits, sequences, allowed, ahead=[1] * len(sequences))
    assert drawn.tokens.shape == (len(sequences),) and drawn.tokens.device == META


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits(kind: str) -> None:
    sampler, whole = Sampler(), [sequence(**KINDS[kind]) for _ in range(3)]
    for _ in range(2):  # prepared, and as it was prepared
        draw(sampler, whole)
    draw(sampler, [sequence(**KINDS[kind]), sequence(temperature=0.0), sequence(), *whole])


def test_nothing_waits_for_masks_and_log_probabilities() -> None:
    mask = torch.full((2, -(-WIDTH // 32)), -1, dtype=torch.int32)
    rows = [sequence(), sequence(logprobs=LogprobOptions(top=3, ids=(4, 5))), sequence(temperature=0.0)]
    draw(Sampler(), rows, Allowed([0, 2], mask))
    draw(Sampler(), rows[:2], Allowed([0, 1], mask))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x[[0, 1]],
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(2).to(META),
        lambda x: x.cpu(),
    ],
)
def test_waiting_is_seen(wait: Any) -> None:
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), asynchronous():
        wait(torch.zeros(2, device=META))
