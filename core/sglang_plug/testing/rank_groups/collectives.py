"""Checks of the collective operations, which every rank of a group runs at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sglang_plug.contracts.serving.executor import Collectives

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
SHAPES = ((1, 1), (3, 7), (64, 1000), (1, 1), (2, 5), (2, 5))
"""Large ones between small ones, and two alike, so that memory that is used again is noticed."""
ROUNDS = 3
VALUES = 60
"""Values are multiples below this number, so that sums of several ranks are exact in the dtype."""
SCALES = {torch.float32: 4097, torch.int64: 4097}
"""Factors of the values by dtype, which make them use more digits; 1 for other dtypes, which have too few."""


def check_collectives(collectives: Collectives, device: torch.device) -> None:
    """Run each operation with tensors of several dtypes and shapes. Raises ``AssertionError`` on the rank concerned."""
    for _ in range(ROUNDS):
        for dtype in DTYPES:
            _check_sums(collectives, device, dtype)
            _check_others(collectives, device, dtype)
    _check_equal(collectives, device)


def _check_sums(collectives: Collectives, device: torch.device, dtype: torch.dtype) -> None:
    """Sums stay as they are while later ones are computed, and ranks may use their tensors again."""
    kept = list[tuple[Tensor, Tensor]]()
    for number, shape in enumerate(SHAPES):
        brought = list(_brought(collectives.size, shape, dtype, number))
        own = brought[collectives.rank].clone().to(device)
        kept.append((collectives.all_reduce(own), torch.stack(brought).sum(0).to(dtype)))
        if kept[-1][0] is not own:
            own.fill_(VALUES)
    for actual, expected in kept:
        _compare(collectives, "all_reduce", actual, expected)


def _check_others(collectives: Collectives, device: torch.device, dtype: torch.dtype) -> None:
    for number, shape in enumerate(SHAPES):
        brought = list(_brought(collectives.size, shape, dtype, number))
        own = brought[collectives.rank].clone().to(device)
        gathered = collectives.all_gather(own)
        own.fill_(VALUES)
        _compare(collectives, "all_gather", gathered, torch.cat(brought, dim=1))
        sent = brought[collectives.rank].clone().to(device)
        collectives.broadcast(sent)
        _compare(collectives, "broadcast", sent, brought[0])


def _check_equal(collectives: Collectives, device: torch.device) -> None:
    """Sums that are rounded are the same numbers on every rank."""
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(collectives.rank)
        own = (torch.rand(8, 125, generator=generator) * 10.0**collectives.rank).to(device, dtype)
        total = collectives.all_reduce(own).contiguous()
        totals = collectives.all_gather(total.clone()).cpu().chunk(collectives.size, dim=1)
        for other, part in enumerate(totals):
            assert torch.equal(part, total.cpu()), (
                f"all_reduce of {dtype} returns other sums on rank {other} than on rank {collectives.rank}; they must "
                "be bitwise equal"
            )


def _brought(size: int, shape: tuple[int, int], dtype: torch.dtype, number: int) -> Iterator[Tensor]:
    """Yield the tensor of each rank."""
    count = shape[0] * shape[1]
    for rank in range(size):
        numbers = (torch.arange(count) * (rank + 1) + number) % VALUES * SCALES.get(dtype, 1)
        yield numbers.reshape(shape).to(dtype)


def _compare(collectives: Collectives, name: str, actual: Tensor, expected: Tensor) -> None:
    where = f"{name} of {expected.dtype}, on rank {collectives.rank} of {collectives.size},"
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (
        f"{where} returns {tuple(actual.shape)} of {actual.dtype}, not {tuple(expected.shape)}"
    )
    wrong = int((actual.cpu() != expected).sum())
    assert not wrong, f"{where} returns {wrong} wrong numbers of {expected.numel()}"
