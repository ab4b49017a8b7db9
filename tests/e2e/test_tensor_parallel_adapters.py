"""Outputs of tensor-parallel ranks with adapters equal those of transformers with merged weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import RequestError
from sglang_plug.config import BackendOptions, EngineConfig, ParallelOptions
from sglang_plug_backends.avx512.library import why_not
from sglang_plug_backends.lora.adapters import Adapters
from sglang_plug_backends.lora.worker_rank import WorkerRankLora
from tests.e2e.test_adapters_parity import FAMILIES, check, config, expected, requests
from tests.e2e.test_update_weights import copy_of
from tests.peft_adapters import Lora, linears, make_lora

SHARED = [("llama-3.2-1b", 2), ("qwen2.5-0.5b", 2), ("phi-3-mini", 4), ("gpt2", 2), ("olmo-2-1b", 4)]
SHARED += [("qwen1.5-moe", 2), ("deepseek-v2", 2)]
Tiny = Callable[[str], Any]
Serve = Callable[..., Any]


def shared(plain: EngineConfig, size: int, executor: str = "threads") -> EngineConfig:
    return replace(plain, parallel=ParallelOptions(tp_size=size, executor=executor))


def loras(folder: Path, model: Any, pattern: str) -> dict[str | None, Lora]:
    targets = linears(model.reference, pattern)
    return {
        "first": make_lora(folder / "first", model.reference, targets, seed=1),
        "second": make_lora(folder / "second", model.reference, targets[::2], rank=3, alpha=5, seed=2),
    }


def generated(engine: Any) -> list[list[int]]:
    return [list(output.tokens) for output in engine.outputs(requests([None, "first", "second"], "generated"))]


@pytest.mark.parametrize(("family", "size"), SHARED)
def test_equals_merged_weights(tmp_path: Path, tiny_model: Tiny, serve: Serve, family: str, size: int) -> None:
    model = tiny_model(family)
    adapters = loras(tmp_path, model, FAMILIES[family])
    engine = serve(shared(config(model.path, *adapters.values()), size))
    check(engine, expected(model, adapters), [None, *adapters], "shared")


def test_loading_and_unloading(tmp_path: Path, tiny_model: Tiny, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker ranks serve loaded adapters, and free the memory of unloaded ones."""
    ranks: list[WorkerRankLora] = []
    follow = WorkerRankLora.handle_command

    def noted(self: WorkerRankLora, command: bytes) -> None:
        ranks.append(self)
        follow(self, command)

    monkeypatch.setattr(WorkerRankLora, "handle_command", noted)
    model = tiny_model("llama-3.2-1b")
    adapters = loras(tmp_path, model, FAMILIES["llama-3.2-1b"])
    references = expected(model, adapters)
    engine = serve(shared(config(model.path), 2))
    for _ in range(3):
        for name, adapter in adapters.items():
            engine.control("load_adapter", adapter=name, path=str(adapter.path))
        check(engine, references, ["second", None, "first"], "round")
        for name in adapters:
            engine.control("unload_adapter", adapter=name)
    engine.control("load_adapter", adapter="last", path=str(adapters["first"].path))
    loaded = 3 * len(adapters) + 1
    assert len(ranks) >= loaded + 4 and len(ranks[0].held) <= 3, "those of the last step may be there still"


def test_processes(tmp_path: Path, tiny_model: Tiny, serve: Serve) -> None:
    model = tiny_model("llama-3.2-1b")
    adapters = loras(tmp_path, model, FAMILIES["llama-3.2-1b"])
    engine = serve(shared(config(model.path, *adapters.values()), 2, "processes"))
    check(engine, expected(model, adapters), [None, *adapters], "processes")


def test_all_ranks_load_an_adapter_or_none(
    tmp_path: Path, tiny_model: Tiny, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama-3.2-1b")
    adapters = loras(tmp_path, model, FAMILIES["llama-3.2-1b"])
    references, path = expected(model, adapters), str(adapters["first"].path)
    engine = serve(shared(config(model.path), 2))
    read = Adapters.read

    def fails_on_rank_1(self: Adapters, path: str) -> Any:
        if self.ranks.rank == 1:
            raise RuntimeError("its disk is full")
        return read(self, path)

    monkeypatch.setattr(Adapters, "read", fails_on_rank_1)
    with pytest.raises(RequestError, match="another rank could not read its part of it"):
        engine.control("load_adapter", adapter="first", path=path)
    monkeypatch.undo()
    with pytest.raises(RequestError, match="is not a folder"):
        engine.control("load_adapter", adapter="first", path=str(tmp_path / "nowhere"))
    engine.control("load_adapter", adapter="first", path=path)
    check(engine, references, [None, "first"], "after")


def test_new_weights_have_the_adapters(tmp_path: Path, tiny_model: Tiny, serve: Serve) -> None:
    model = tiny_model("llama-3.2-1b")
    adapters = loras(tmp_path, model, FAMILIES["llama-3.2-1b"])
    new = copy_of(model.path, tmp_path / "new")
    results = []
    for size in (1, 2):
        engine = serve(shared(config(model.path, *adapters.values()), size))
        assert engine.control("update_weights", source=str(new))["success"]
        results.append(generated(engine))
    assert results[0] == results[1]


def test_graphs_are_for_steps_without_adapters(tmp_path: Path, tiny_model: Tiny, serve: Serve) -> None:
    if why_not():
        pytest.skip(why_not())
    model = tiny_model("llama-3.2-1b")
    adapters = loras(tmp_path, model, FAMILIES["llama-3.2-1b"])
    results = []
    for graphs in (True, False):
        plain = config(model.path, *adapters.values())
        backends = BackendOptions(attention="avx512", kernels="avx512", disable_cuda_graph=not graphs)
        engine = serve(shared(replace(plain, model=replace(plain.model, dtype="bfloat16"), backends=backends), 2))
        results.append(generated(engine))
    assert results[0] == results[1]
