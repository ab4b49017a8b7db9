"""Collectives of torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from sglang_plug import Collectives

LOOPBACK = "lo"


class GroupCollectives(Collectives):
    """A process group that is created on first use, because creation waits for all ranks.

    Args:
        rank: of this process.
        size: how many there are.
        device: of this rank.
        rendezvous: path of a file that does not exist yet, through which the ranks find each other.
        timeout: seconds to wait for them.
    """

    def __init__(self, rank: int, size: int, device: torch.device, rendezvous: str, timeout: float) -> None:
        super().__init__(rank, size)
        self._device, self._rendezvous, self._timeout = device, rendezvous, timedelta(seconds=timeout)

    @cached_property
    def _group(self) -> Any:
        store = distributed.FileStore(self._rendezvous, self.size)  # type: ignore[attr-defined]
        if self._device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return distributed.ProcessGroupNCCL(store, self.rank, self.size, options)
        if os.path.exists(f"/sys/class/net/{LOOPBACK}"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)  # not reachable from other machines
        return distributed.ProcessGroupGloo(store, self.rank, self.size, self._timeout)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum ``x`` over all ranks in place."""
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate ``[rows, n]`` of all ranks to ``[rows, size * n]``."""
        rows, width = x.shape
        result = torch.empty(self.size * rows, width, dtype=x.dtype, device=x.device)
        self._group._allgather_base(result, x).wait()
        return result.view(self.size, rows, width).transpose(0, 1).reshape(rows, self.size * width)

    def broadcast(self, x: Tensor) -> None:
        """Copy the tensor of rank 0 to all ranks in place."""
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([x], options).wait()

    def close(self) -> None:
        """Close the connections."""
        group = self.__dict__.pop("_group", None)
        if group is not None and self._device.type == "cuda":
            group.shutdown()
