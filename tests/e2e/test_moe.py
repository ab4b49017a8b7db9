"""Mixtures of experts, served from both layouts of their checkpoints, and the recorded expert distribution."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_plug import ConfigError, EngineConfig, Request, RequestError, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions, ScheduleOptions

FAMILIES = ["qwen1.5-moe", "qwen3-moe", "mixtral-8x7b", "deepseek-v2-lite"]
DENSE_FIRST = ("qwen3-moe", "deepseek-v2-lite")
"""Families whose first layer has no experts."""
NEW_TOKENS = 10


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    shared = [draw.randrange(3, 512) for _ in range(50)]
    own = [[draw.randrange(3, 512) for _ in range(length)] for length in (1, 2, 17, 40)]
    return [*own, shared + own[2], shared[:30], shared]


def config(path: Path, *, chunk: int = 8192, pool: int = 4096, cache: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu"),
        cache=CacheOptions(max_total_tokens=pool, prefix_cache=cache),
        schedule=ScheduleOptions(chunked_prefill_size=chunk, max_running_requests=16),
    )


def requests(name: str, new_tokens: int = NEW_TOKENS) -> list[Request]:
    params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0)
    return [Request(id=f"{name}{index}", tokens=tuple(tokens), params=params) for index, tokens in enumerate(prompts())]


def fused(model: Any, folder: Path) -> Path:
    """Write the checkpoint in the layout of transformers in memory: all experts of a layer in two tensors."""
    shutil.copytree(model.path, folder)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.reference.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["one by one", "fused"])
def test_greedy_tokens(
    family: str, layout: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model(family)
    path = model.path if layout == "one by one" else fused(model, tmp_path / "fused")
    names = set(load_file(path / "model.safetensors"))
    assert any(".experts.3." in name for name in names) == (layout == "one by one")
    assert any("block_sparse_moe" in name for name in names) == (layout == "one by one" and family == "mixtral-8x7b")
    engine = serve(config(path))
    for temperature in ("cold", "warm"):
        for tokens, output in zip(prompts(), engine.outputs(requests(temperature)), strict=True):
            assert list(output.tokens) == model.greedy(tokens, NEW_TOKENS, output.tokens), temperature


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_retraction(family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, chunk=16, pool=110))
    outputs = engine.outputs(requests("", 30))
    for tokens, output in zip(prompts(), outputs, strict=True):
        assert list(output.tokens) == model.greedy(tokens, 30, output.tokens)
    assert sum(output.retractions for output in outputs) > 0


def test_a_checkpoint_without_one_expert_is_refused(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model("mixtral-8x7b").path, tmp_path / "short")
    tensors = load_file(folder / "model.safetensors")
    for part in ("w1", "w2", "w3"):
        del tensors[f"model.layers.1.block_sparse_moe.experts.5.{part}.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ConfigError) as caught:
        serve(config(folder))
    assert "leaves 2 parameters unfilled" in str(caught.value)
    assert "'model.layers.1.mlp.experts.down_proj.weight' ('5.down' is missing)" in str(caught.value)


def test_more_experts_per_token_than_experts_are_refused(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model("qwen3-moe").path, tmp_path / "greedy")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "num_experts_per_tok": 9}))
    with pytest.raises(ValueError, match="num_experts_per_tok is 9, but the model has 8 experts"):
        serve(config(folder))


@torch.inference_mode()
def chosen_by_transformers(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the experts that transformers' routers choose, as booleans ``[tokens, layers, experts]``."""
    output = model.reference(torch.tensor([tokens]), output_router_logits=True)
    layers = [logits.view(len(tokens), -1) for logits in output.router_logits]
    count = model.reference.config.num_experts_per_tok
    masks = [torch.zeros_like(layer, dtype=torch.bool).scatter_(1, layer.topk(count).indices, True) for layer in layers]
    return torch.stack(masks, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_choices_are_those_of_transformers(
    family: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model(family)
    engine = serve(config(model.path, chunk=16, cache="none"))
    engine.outputs(requests("before"))
    engine.control("start_expert_record", mode="per_token")
    outputs = engine.outputs(requests("recorded"))
    engine.control("stop_expert_record")
    engine.outputs(requests("after"))
    _, file = engine.control("dump_expert_record", folder=str(tmp_path))["files"]
    tensors = torch.load(file, weights_only=True)
    counts = tensors["count"].view(len(tensors["layers"]), -1)
    # the last token of an answer is sampled, but nothing is computed from it
    rows = [[*tokens, *output.tokens[:-1]] for tokens, output in zip(prompts(), outputs, strict=True)]
    masks = [chosen_by_transformers(model, row) for row in rows]
    assert tensors["layers"].tolist() == ([1, 2] if family in DENSE_FIRST else [0, 1, 2])
    assert counts.tolist() == torch.cat(masks).sum(0).tolist()
    expected = [
        (token, position, mask[position].tolist())
        for row, mask in zip(rows, masks, strict=True)
        for position, token in enumerate(row)
    ]
    kept = zip(tensors["input_ids"].tolist(), tensors["positions"].tolist(), tensors["experts"].long(), strict=True)
    experts = counts.shape[1]
    choices = [
        (token, position, torch.zeros(len(choice), experts, dtype=torch.bool).scatter_(1, choice, True).tolist())
        for token, position, choice in kept
    ]
    assert sorted(choices) == sorted(expected)


def test_new_weights_are_recorded_too(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    engine = serve(config(tiny_model("qwen3-moe").path))
    engine.control("update_weights", source=str(tiny_model("qwen3-moe").path))
    engine.control("start_expert_record")
    engine.outputs(requests(""))
    table, _ = engine.control("dump_expert_record", folder=str(tmp_path))["files"]
    counts = [int(line.rsplit(",", 1)[1]) for line in Path(table).read_text().splitlines()[1:]]
    assert sum(counts) > 0


def test_a_dense_model_has_no_such_control_call(tiny_model: Callable[..., Any], serve: Callable[..., Any]) -> None:
    engine = serve(config(tiny_model("qwen3-0.6b").path))
    with pytest.raises(RequestError, match="no control call named 'start_expert_record'") as caught:
        engine.control("start_expert_record")
    assert caught.value.status == 404
