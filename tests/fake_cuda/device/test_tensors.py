"""The fake device computes correct values, and detects synchronisation and mixed devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sglang_plug.ops.host_device_copy import AsyncHostCopy
from tests.fake_cuda.device.runtime import without_synchronization
from tests.fake_cuda.device.tensors import CUDA, SynchronizationError, clock

pytestmark = pytest.mark.usefixtures("idle_device")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(4.0).pin_memory().to(CUDA, non_blocking=True)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: int(x[0]),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x.unique(),
        lambda x: x.long().bincount(),
        lambda x: x.repeat_interleave(x.long()),
        lambda x: torch.equal(x, x),
        lambda x: x[[0, 1]],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(4).to(CUDA),
        lambda x: x + torch.ones(4).to(CUDA, non_blocking=True),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: x.cpu(),
        lambda x: torch.ones(4).copy_(x),
        lambda x: torch.ones(4).copy_(x, non_blocking=True),
        lambda x: torch.ones(4).pin_memory().copy_(x),
        lambda x: torch.cuda.synchronize(),
    ],
)
@torch.inference_mode()
def test_waiting_is_seen(wait: Any, x: Tensor) -> None:
    wait(x)
    assert clock.waits
    with pytest.raises(SynchronizationError), without_synchronization():
        wait(x)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(4),
        lambda x: torch.cat([x, torch.ones(4)]),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: torch.ones(4).add_(x),
        lambda x: torch.mm(x[None], torch.ones(4, 1)),
    ],
)
@torch.inference_mode()
def test_mixed_devices_are_refused(mix: Any, x: Tensor) -> None:
    with pytest.raises(RuntimeError, match="on the same device"):
        mix(x)


@torch.inference_mode()
def test_operations_without_synchronisation_are_right(x: Tensor) -> None:
    with without_synchronization():
        index = torch.tensor([3, 0]).pin_memory().to(CUDA, non_blocking=True)
        y = torch.zeros(2, 4, device=CUDA)
        y[1] = x * torch.tensor(2.0)
        y[:, 0] = 7
        y.index_put_((index.clamp(max=1), index), x[:2])
        assert y.is_cuda and y.device == CUDA and type(y[0].softmax(-1)) is type(x)
        result = AsyncHostCopy.of(y, x[:2].repeat_interleave(index, output_size=3))
    assert result.tensors[0][0, 0] > 1e38, "the copy has not arrived yet"
    assert [item.tolist() for item in result.read()] == [[[1, 0, 0, 0], [7, 2, 4, 0]], [0, 0, 0]]


@torch.inference_mode()
def test_what_the_device_is_still_to_read_must_stay(x: Tensor) -> None:
    held = torch.ones(4).pin_memory()
    x.copy_(held, non_blocking=True)
    held[0] = 5
    with pytest.raises(AssertionError, match="still to read"):
        clock.finish()


def test_modules_are_made_there_and_moved() -> None:
    with CUDA:
        linear = nn.Linear(4, 2).requires_grad_(False)
    host = nn.Linear(4, 2).requires_grad_(False)
    moved = nn.Linear(4, 2).requires_grad_(False)
    moved.load_state_dict(host.state_dict())
    moved.to(CUDA)
    assert linear.weight.is_cuda and isinstance(moved.weight, nn.Parameter)
    x = torch.randn(3, 4)
    assert torch.equal(moved(x.to(CUDA)).cpu(), host(x))


@torch.inference_mode()
def test_graphs_do_again_what_was_captured(x: Tensor) -> None:
    out, graph = torch.zeros(4, device=CUDA), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_((x * 2).cumsum(0) + torch.ones(4, device=CUDA))
    x.fill_(1)
    graph.replay()
    assert out.tolist() == [3, 5, 7, 9]
    with pytest.raises(SynchronizationError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
    with pytest.raises(AssertionError, match="not to be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.copy_(torch.ones(4).pin_memory(), non_blocking=True)
