"""Copies between host and device, of which a CPU needs none; ``tests/fake_cuda`` tests them on an asynchronous
device."""

from __future__ import annotations

import torch

from sglang_plug import pinned, send, upload
from sglang_plug.ops.host_device_copy import AsyncHostCopy

CPU = torch.device("cpu")


def test_on_a_cpu_nothing_is_copied() -> None:
    x = upload([3, 1], torch.int32, CPU)
    assert x.tolist() == [3, 1] and x.dtype == torch.int32
    assert send(x, CPU) is x and pinned(x, CPU) is x
    fetched = AsyncHostCopy.of(x)
    assert fetched.ready and fetched.read()[0] is x
    assert AsyncHostCopy.of().read() == ()
