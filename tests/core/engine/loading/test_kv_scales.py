"""Scales of an FP8 KV pool, separated from the other tensors of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import (
    Attention,
    AttentionShape,
    BuildEnv,
    EngineConfig,
    KVScale,
    KVScaleTensor,
    Model,
    Plugins,
    WeightError,
)
from sglang_plug.config import BackendOptions, CacheOptions, ModelOptions
from sglang_plug.engine.loading.kv_scales import KVScaleReader
from sglang_plug.engine.loading.resolve import Resolved, resolve
from sglang_plug_backends.torch_native.attention import TorchAttention

WEIGHT = ("a.weight", torch.ones(2))


class Block(nn.Module):
    def __init__(self, env: BuildEnv, *layers: int) -> None:
        super().__init__()
        self.own_scale = nn.Parameter(torch.ones(1))
        self.inner = nn.ModuleList(Attention(env, layer, scale=1.0) for layer in layers)


class Small(Model):
    """A model with two blocks of one attention layer, one block of two, and one without attention."""

    packed = {"alias": ("second", None)}

    def __init__(self, env: BuildEnv) -> None:
        super().__init__(None, env)
        self.first, self.second, self.twice, self.never = Block(env, 0), Block(env, 1), Block(env, 2, 3), Block(env)


def meaning(name: str) -> KVScaleTensor | None:
    """Parse a scale's name, ``LAYER:PARTS``; ``first.own_scale`` is a scale too, although a weight could have that
    name."""
    layer, colon, parts = name.partition(":")
    if name == "first.own_scale":
        return KVScaleTensor(layer="first", parts=("k",))
    return KVScaleTensor(layer=layer, parts=tuple(parts)) if colon else None  # type: ignore[arg-type]


@pytest.fixture
def resolved(tiny_model: Callable[[str], Any]) -> Callable[..., Resolved]:
    def make(kv: str = "fp8_e4m3", **shape: Any) -> Resolved:
        config = EngineConfig(
            model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu", dtype="bfloat16"),
            cache=CacheOptions(kv_dtype=kv),
            backends=BackendOptions(attention="torch", grammar="none"),
        )
        resolution = resolve(config, Plugins.discover())
        return replace(resolution, shape=replace(resolution.shape, layers=4, **shape))

    return make


def small() -> Small:
    shape = AttentionShape(heads=2, kv_heads=2, dim=4, layers=4)
    return Small(BuildEnv(attention=TorchAttention(shape, torch.device("cpu"))))


def read(*tensors: tuple[str, Any]) -> tuple[KVScaleReader, list[str]]:
    """Read tensors; return the reader, and the names of the tensors that it passed to the model."""
    reader = KVScaleReader(small(), meaning)
    pairs = [(name, value if isinstance(value, Tensor) else torch.tensor(value)) for name, value in tensors]
    return reader, [name for name, _ in reader.weights(iter(pairs))]


def test_scales_are_kept_back_and_weights_are_not(resolved: Callable[..., Resolved]) -> None:
    reader, names = read(
        WEIGHT, ("first:k", 0.5), ("alias:kv", [2.0]), ("first:v", torch.tensor(0.25, dtype=torch.bfloat16))
    )
    assert names == ["a.weight"]
    assert reader.scales(resolved()) == {0: KVScale(0.5, 0.25), 1: KVScale(2.0, 2.0)}


def test_of_queries_nothing_is_kept(resolved: Callable[..., Resolved]) -> None:
    reader, names = read(("first:", 0.5))
    assert names == [] and reader.scales(resolved()) == {}


@pytest.mark.parametrize("name", ["first.own_scale", "twice:k", "never:k", "nowhere:k", "first.inner.7:k"])
def test_what_belongs_to_no_layer_goes_to_the_model(name: str, resolved: Callable[..., Resolved]) -> None:
    reader, names = read((name, 0.5))
    assert names == [name] and reader.scales(resolved()) == {}


def test_a_checkpoint_without_names_has_none(resolved: Callable[..., Resolved]) -> None:
    reader = KVScaleReader(small(), None)
    assert [name for name, _ in reader.weights([("first:k", torch.ones(1))])] == ["first:k"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("first:k", [0.5, 0.5]), ("first:v", 1.0)], r"'first:k' has the shape \(2,\): one scale"),
        ([("first:k", 1.0), ("first:v", 0.0)], "'first:v' is 0, which is no scale"),
        ([("first:k", -1.0), ("first:v", 1.0)], "'first:k' is -1, which"),
        ([("first:k", float("nan")), ("first:v", 1.0)], "'first:k' is nan"),
        ([("first:k", float("inf")), ("first:v", 1.0)], "'first:k' is inf"),
        ([("first:k", 1e-42), ("first:v", 1.0)], r"'first:k' is 1.*e-42"),
        ([("first:k", 1.0)], "has 'first:k' but no v_scale next to it"),
        ([("first:v", 1.0)], "has 'first:v' but no k_scale next to it"),
    ],
)
def test_what_is_no_scale_is_named(
    tensors: list[tuple[str, Any]], message: str, resolved: Callable[..., Resolved]
) -> None:
    reader, names = read(*tensors)
    assert names == []
    with pytest.raises(WeightError, match=message):
        reader.scales(resolved("fp8_e5m2"))
    assert reader.scales(resolved("auto")) == {}, "a pool in the model's dtype does not need them"


def test_two_for_one_must_be_equal(resolved: Callable[..., Resolved]) -> None:
    reader, _ = read(("first:kv", 0.5), ("first:k", [0.5]))
    assert reader.scales(resolved()) == {0: KVScale(0.5, 0.5)}
    with pytest.raises(WeightError, match="two scales for the same keys or values: 'first:kv', 'first:v'"):
        read(("first:kv", 0.5), ("first:v", 0.25))


def test_values_in_keys_count_as_keys_do(resolved: Callable[..., Resolved]) -> None:
    latent = resolved(values_in_keys=True)
    assert read(("first:k", 0.5))[0].scales(latent) == {0: KVScale(0.5, 0.5)}
    assert read(("first:k", 0.5), ("first:v", 0.25))[0].scales(latent) == {0: KVScale(0.5, 0.5)}


def test_one_line_tells(resolved: Callable[..., Resolved], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sglang_plug.engine.loading.kv_scales")
    reader, _ = read(("first:k", 0.5), ("first:v", 0.25), ("second:kv", 4.0))
    for choice, line in (
        (resolved(), "from the checkpoint (first:k, …), 2 of 4 layers. Keys: 0.5 to 4, values: 0.25 to 4"),
        (resolved("auto"), "of the checkpoint (first:k, …) are not used: keys and values are kept in bfloat16"),
        (replace(resolved(), causal=False), "are not used: nothing is kept"),
    ):
        caplog.clear()
        reader.scales(choice)
        (record,) = caplog.records
        assert line in record.getMessage() and record.levelname == "INFO"
    none, _ = read()
    for name, limit, level in (("fp8_e4m3", "448", "WARNING"), ("fp8_e5m2", "57344", "INFO")):
        caplog.clear()
        none.scales(resolved(name))
        (record,) = caplog.records
        assert f"all are 1. Keys and values beyond {limit} are clamped ({name})" in record.getMessage()
        assert record.levelname == level
    caplog.clear()
    none.scales(resolved("auto"))
    assert not caplog.records
