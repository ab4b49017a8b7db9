"""The plugins of the tutorial are written to files, discovered and used as by a reader."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from sglang_plug import EngineConfig, NodeStats, PluginOptions, Plugins, Request, SamplingParams
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.testing import check_logits_processor
from sglang_plug_api.offline.engine import Engine
from sglang_plug_api.options.request_fields import request_fields

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``my-plugins`` at the end of the tutorial."""
    root = tmp_path_factory.mktemp("tutorial")
    blocks = BLOCK.findall((ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf-8"))
    assert len(blocks) == 10
    for name, text in blocks:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root / "my-plugins"


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A checkpoint of the bigram model, and its table of logits."""
    path = tmp_path_factory.mktemp("bigram")
    generator = torch.Generator().manual_seed(1)
    embed, head = (torch.randn(32, 8, generator=generator) for _ in range(2))
    config = {"architectures": ["BigramForCausalLM"], "model_type": "bigram", "vocab_size": 32, "hidden_size": 8}
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    save_file({"embed.weight": embed, "lm_head.weight": head}, path / "model.safetensors")
    return path, embed @ head.T


def test_everything_is_found_and_nothing_fails(folder: Path) -> None:
    plugins = Plugins.discover(PluginOptions(dirs=(str(folder),)))
    assert plugins.failures == []
    assert {"largest_first", "only_tokens", "plain", "bigram", "count"} <= {name for name, _, _ in plugins.fingerprint}


def test_the_policy_is_one_file_with_a_setting(folder: Path) -> None:
    file = str(folder / "largest_first.py")
    options = PluginOptions(files=(file,), settings={"largest-first": {"keep_after_hits": "3"}})
    component = Plugins.discover(options).get("eviction", "largest-first")
    policy = component.load()(component.settings())
    short, long, loved = (
        NodeStats(tokens=tokens, depth=9, created=0.0, used=0.0, hits=hits, priority=0)
        for tokens, hits in [(1, 0), (8, 0), (9, 3)]
    )
    assert sorted([short, long, loved], key=policy.eviction_priority) == [long, short, loved]


def test_the_test_of_the_attention_backend_passes(folder: Path) -> None:
    project = folder / "sglang-plug-tutorial"
    code = f"import sys, pytest; sys.path.insert(0, {str(project)!r}); sys.exit(pytest.main(['-q', {str(project)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_policy_backend_and_model_serve_together(
    folder: Path, bigram: tuple[Path, torch.Tensor], serve: Callable[..., Any]
) -> None:
    path, logits = bigram
    engine = serve(
        EngineConfig(
            model=ModelOptions(path=str(path), device="cpu"),
            cache=CacheOptions(max_total_tokens=64, eviction_policy="largest-first"),
            backends=BackendOptions(attention="plain"),
            plugins=PluginOptions(dirs=(str(folder),)),
        )
    )
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    (output,) = engine.outputs([Request(id="a", tokens=(4, 7), params=params)])
    expected, last = [], 7
    for _ in range(6):
        last = int(logits[last].argmax())
        expected.append(last)
    assert list(output.tokens) == expected
    chosen = {kind: engine.info["components"][kind]["plugin"] for kind in ("eviction", "attention", "model")}
    assert chosen == {"eviction": "largest_first", "attention": "plain", "model": "bigram"}


def test_the_logits_processor_keeps_the_contract_and_adds_its_field(folder: Path) -> None:
    file = str(folder / "only_tokens.py")
    plugins = Plugins.discover(PluginOptions(files=(file,)))
    component = plugins.get("logits-processor", "only-tokens")
    fields = request_fields(plugins).owners["only_token_ids"]
    cases = [SamplingParams(processor_fields={"only_token_ids": tokens}) for tokens in ([3, 5], [0])]
    check_logits_processor(component.load(), cases, request_fields=fields.kind)
    with Engine(max_total_tokens=128, plugins=PluginOptions(files=(file,)), log_level="warning") as engine:
        params = {"only_token_ids": [321, 310], "max_new_tokens": 6, "ignore_eos": True}
        answer = engine.generate("The capital of France is", params)
        assert isinstance(answer, dict) and set(answer["output_ids"]) <= {321, 310}


def test_the_route_counts(folder: Path) -> None:
    plugins = Plugins.discover(PluginOptions(dirs=(str(folder),)))
    app = FastAPI()
    app.include_router(
        plugins.get("route", "count").load()(SimpleNamespace(tokenizer=SimpleNamespace(encode=str.split)))
    )
    with TestClient(app) as client:
        assert client.post("/v1/count", json={"text": "one two three"}).json() == {"tokens": 3}
        assert client.post("/v1/count", json={}).status_code == 422


def test_the_plugin_in_the_readme_works(tmp_path: Path) -> None:
    block = next(
        text
        for text in re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
        if "hookimpl" in text
    )
    file = tmp_path / "largest_first.py"
    file.write_text(block)
    plugins = Plugins.discover(PluginOptions(files=(str(file),)))
    assert plugins.failures == []
    assert plugins.get("eviction", "largest-first").load()().eviction_priority(NodeStats(4, 4, 0.0, 7.0, 1, 0)) == (
        -4,
        7.0,
    )
