"""The ledger of device memory, and the recognition of out-of-memory errors."""

from __future__ import annotations

import pytest
import torch

from sglang_plug import ConfigError
from sglang_plug.engine.memory.budget import CudaMemory, MemoryLedger, device_memory, gigabytes
from sglang_plug.system.out_of_memory import is_out_of_memory

GIB = 1 << 30
TORCH = "CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 139.80 GiB of which ..."


class Memory:
    def __init__(self) -> None:
        self.taken = GIB // 2
        self.kept = 0

    def total(self) -> int:
        return 10 * GIB

    def free(self) -> int:
        return 10 * GIB - self.taken - self.kept

    def release(self) -> None:
        self.kept = 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(TORCH), True),
        (RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` ..."), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried ..."),
            True,
        ),
        (RuntimeError("out of range"), False),
        (ValueError("a text about out of memory"), False),
        (None, False),
    ],
)
def test_which_errors(error: BaseException | None, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize("named", [True, False])
def test_what_an_error_came_of_counts(named: bool) -> None:
    outer = RuntimeError("operation failed due to a previous error during capture")
    inner = torch.OutOfMemoryError(TORCH)
    if named:
        outer.__cause__ = inner
    else:
        outer.__context__ = inner
    assert is_out_of_memory(outer)


def test_a_stage_is_what_stays_a_peak_what_was_there() -> None:
    memory = Memory()
    ledger = MemoryLedger(memory)
    for name, peak in (("weights", False), ("step", True)):
        with ledger.stage(name, "give up", peak=peak):
            memory.taken += GIB
            memory.kept += 2 * GIB
    assert ledger.taken == {"before the start": GIB // 2, "weights": GIB, "step": 3 * GIB}
    assert memory.kept == 0, "the next stage begins without"
    with ledger.stage("weights", "give up"):
        memory.taken -= GIB
    assert ledger.taken["weights"] == 0
    assert ledger.account() == "before the start 0.50 GB, weights 0.00 GB, step 3.00 GB"


def test_an_error_tells_the_numbers() -> None:
    memory = Memory()
    ledger = MemoryLedger(memory)
    ledger.enter("weights", 3 * GIB)
    with pytest.raises(ConfigError) as raised, ledger.stage("KV pool", "lower --max-total-tokens"):
        raise torch.OutOfMemoryError(TORCH)
    assert str(raised.value) == (
        "out of memory: no room for KV pool (tried to allocate 20.50 MiB); 9.50 GB of 10.00 GB are free; "
        "taken: before the start 0.50 GB, weights 3.00 GB; lower --max-total-tokens"
    )
    assert "KV pool" not in ledger.taken
    with pytest.raises(RuntimeError, match="something else"), ledger.stage("KV pool", "give up"):
        raise RuntimeError("something else")


def test_where_nothing_is_measured_errors_stay_what_they_are() -> None:
    ledger = MemoryLedger(None)
    with ledger.stage("weights", "give up"):
        pass
    assert ledger.taken == {}
    for block in (ledger.stage, ledger.guard):
        with pytest.raises(torch.OutOfMemoryError), block("weights", "give up"):
            raise torch.OutOfMemoryError(TORCH)
    error = ledger.of_step(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    assert error is not None and error.startswith(
        "out of memory: no room for a step (tried to allocate 8 bytes); send fewer"
    )


def test_a_step_that_failed_otherwise_is_not_explained() -> None:
    assert MemoryLedger(Memory()).of_step(RuntimeError("an assertion")) is None


def test_cuda_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    device = torch.device("cuda", 3)

    def info(device: torch.device) -> tuple[int, int]:
        calls.append(f"info {device}")
        return 4, 9

    monkeypatch.setattr(torch.cuda, "mem_get_info", info)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(f"wait {device}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    memory = device_memory(device)
    assert isinstance(memory, CudaMemory) and device_memory(torch.device("cpu")) is None
    assert (memory.total(), memory.free()) == (9, 4)
    memory.release()
    assert calls == ["info cuda:3", "wait cuda:3", "info cuda:3", "wait cuda:3", "empty"]


def test_gigabytes() -> None:
    assert gigabytes(3 * GIB // 2) == "1.50 GB"
