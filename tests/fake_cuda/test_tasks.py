"""Pooling, pairs of texts, and constraints on the asynchronous fake device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sglang_plug import Constraint, LogprobOptions
from sglang_plug.config import ModelOptions
from tests.fake_cuda.device.tensors import clock
from tests.fake_cuda.engine import Engine
from tests.families import SHARED

WHOLE: dict[str, Any] = {**SHARED, "num_attention_heads": 4, "num_hidden_layers": 2, "type_vocab_size": 2}
RERANKER = transformers.XLMRobertaConfig(**WHOLE, num_labels=1)


def saved(path: Path, kind: str, config: Any) -> Path:
    torch.manual_seed(3)
    getattr(transformers, kind)(config).eval().save_pretrained(path)
    return path


def values(engine: Engine, task: str) -> dict[str, tuple[float, ...]]:
    """Copy values to the host, which is the only synchronisation."""
    for length in (9, 4, 30):
        engine.submit([*range(5, 5 + length), 2], 0, task=task)
    clock.waits.clear()
    result = engine.finish(strict=False)
    assert set(clock.waits) <= {"tolist of a device's tensor"}
    return {name: tuple(output.values or ()) for name, output in result.items()}


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize(
    ("kind", "config", "task"),
    [
        ("BertModel", transformers.BertConfig(**WHOLE), "embed"),
        ("BertForSequenceClassification", transformers.BertConfig(**WHOLE, num_labels=1), "rerank"),
        ("XLMRobertaForSequenceClassification", RERANKER, "rerank"),
    ],
)
def test_encoders(tmp_path: Path, kind: str, config: Any, task: str) -> None:
    results = []
    for device in ("cuda", "cpu"):
        engine = Engine(saved(tmp_path, kind, config), task=task, attention="torch", kernels="torch", device=device)
        results.append(values(engine, task))
    assert results[0].keys() == results[1].keys()
    for name, result in results[0].items():
        assert result and result == pytest.approx(results[1][name], abs=1e-5)


@pytest.mark.usefixtures("idle_device")
def test_embeddings_of_a_decoder(tiny_model: Callable[[str], Any]) -> None:
    engine = Engine(tiny_model("qwen3-0.6b").path, task="embed", dtype="bfloat16")
    assert all(len(value) == SHARED["hidden_size"] for value in values(engine, "embed").values())


@pytest.mark.usefixtures("idle_device")
def test_masks() -> None:
    engine = Engine(ModelOptions().path, dtype="bfloat16", cuda_graph_max_bs=4)
    clock.executed.clear()
    colours = Constraint("regex", "(red|green|blue)( (red|green|blue)){3}")
    engine.submit(range(3, 13), 12, constraint=colours)
    engine.submit(range(3, 13), 6, constraint=colours, temperature=0.8, logprobs=LogprobOptions(top=2))
    engine.submit(range(3, 9), 12)
    engine.finish()
    assert clock.executed["mask_kernel"] > 0 and clock.executed["graph"] > 0


@pytest.mark.usefixtures("idle_device")
@pytest.mark.parametrize("mode", ["stat", "per_token"])
def test_recorded_experts(tiny_model: Callable[[str], Any], tmp_path: Path, mode: str) -> None:
    engine = Engine(tiny_model("qwen3-moe").path, dtype="bfloat16", disable_cuda_graph=True)
    controls = {name: call for controls in engine.loop.extensions.service.controls for name, call in controls().items()}
    controls["start_expert_record"](mode)
    for length in (9, 40):
        engine.submit(range(3, 3 + length), 5)
    engine.finish()
    result = torch.load(
        next(file for file in controls["dump_expert_record"](str(tmp_path))["files"] if file[-2:] == "pt")
    )
    tokens = 9 + 4 + 40 + 4
    assert result["count"].sum() == tokens * 3 * 2, "three experts in each of two layers"
    if mode == "per_token":
        assert sorted(result["positions"].tolist()) == sorted([*range(13), *range(44)])
        assert result["input_ids"][:9].tolist() == list(range(3, 12))
