"""The smallest model and attention backend, for measuring the cost of a step outside the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sglang_plug import Attention, AttentionBackend, BuildEnv, ForwardBatch, Model

WIDTH = 8
MODEL_PLUGIN = """
from sglang_plug import AttentionSpec, ModelSpec, hookimpl


@hookimpl
def register_models():
    yield ModelSpec(name="BenchmarkTiny", target="benchmarks.common.tiny:TinyModel")


@hookimpl
def register_attention_backends():
    yield AttentionSpec(name="benchmark-store", target="benchmarks.common.tiny:StoreOnly")
"""
DUMMY_PLUGIN = """
from sglang_plug import EvictionSpec, ObserverSpec, hookimpl


@hookimpl
def register_observers():
    yield ObserverSpec(name="watcher-{index}", target="nowhere:Watcher", enabled=False)


@hookimpl
def register_cache_policies():
    yield EvictionSpec(name="policy-{index}", target="nowhere:Policy")


@hookimpl
def choose_component(kind, facts):
    return None
"""


class StoreOnly(AttentionBackend):
    """Attention backend that stores keys and values and returns the queries."""

    def plan(self, batch: ForwardBatch) -> None:
        """Do nothing: there is no plan."""

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        """Write to the pool and return ``q``."""
        assert batch.kv is not None
        batch.kv.store(layer.index, k, v, batch.slots)
        return q


class TinyModel(Model):
    """A model of one layer and one head, ``WIDTH`` numbers wide."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(config, env)
        self.embed = nn.Embedding(config.vocab_size, WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.attention = Attention(env, 0, scale=1.0)
        self.output = nn.Linear(WIDTH, config.vocab_size, bias=False)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return hidden states ``[T, WIDTH]``."""
        x: Tensor = self.project(self.embed(batch.input_ids))
        q = x.view(-1, 1, WIDTH)
        attended: Tensor = self.attention(q, q, q, batch)
        return attended.reshape(-1, WIDTH) + x

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits ``[rows, vocabulary]``."""
        logits: Tensor = self.output(hidden)
        return logits


def write_tiny(folder: Path, vocabulary: int) -> Path:
    """Write a ``config.json`` for the tiny model; return its folder."""
    config = {
        "architectures": ["BenchmarkTiny"],
        "model_type": "benchmark_tiny",
        "vocab_size": vocabulary,
        "hidden_size": WIDTH,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "max_position_embeddings": 1 << 20,
        "dtype": str(torch.float32).removeprefix("torch."),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def write_plugins(folder: Path, count: int) -> tuple[str, ...]:
    """Write one-file plugins: the tiny model's, and ``count`` with unused declarations."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "benchmark_model.py"]
    files[0].write_text(MODEL_PLUGIN, encoding="utf-8")
    for index in range(count):
        files.append(folder / f"dummy_{index}.py")
        files[-1].write_text(DUMMY_PLUGIN.format(index=index), encoding="utf-8")
    return tuple(map(str, files))
