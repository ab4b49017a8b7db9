"""Executors start the ranks that share a model: as processes of this machine or as threads of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import ExecutorSpec, Facts, hookimpl


@hookimpl
def register_executors() -> Iterator[ExecutorSpec]:
    yield ExecutorSpec(
        name="processes",
        target=f"{__name__}.processes:ProcessExecutor",
        summary="a process of this machine for each rank, connected by torch.distributed (NCCL, gloo)",
        settings=f"{__name__}.processes:ProcessSettings",
        needs=("zmq",),
        devices=frozenset({"cpu", "cuda"}),
    )
    yield ExecutorSpec(
        name="threads",
        target=f"{__name__}.threads:ThreadExecutor",
        summary="a thread of the engine's process for each rank, for tests and debugging",
        devices=frozenset({"cpu"}),
    )


@hookimpl(trylast=True)
def choose_component(kind: str, facts: Facts) -> str | None:
    return "processes" if kind == "executor" else None
