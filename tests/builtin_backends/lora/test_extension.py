"""Adapters are a step extension: it keeps the contract, and a server without it refuses what only it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import (
    Adapter,
    AdapterRequest,
    Attention,
    AttentionBackend,
    AttentionShape,
    BuildEnv,
    ConfigError,
    EngineConfig,
    ForwardBatch,
    Kernels,
    LayerAdapter,
    Model,
    PluginOptions,
    Request,
    RequestError,
)
from sglang_plug.config import AdapterOptions, CacheOptions, ModelOptions
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.extensions.build import RankLink, send_nothing
from sglang_plug.engine.scheduling.sequence import Sequence
from sglang_plug.layers import Linear
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.lora.adapters import Adapters
from sglang_plug_backends.lora.extension import Lora

CPU = torch.device("cpu")


class Nowhere(AttentionBackend):
    def plan(self, batch: ForwardBatch) -> None: ...

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        raise NotImplementedError


class Block(torch.nn.Module):
    def __init__(self, env: BuildEnv) -> None:
        super().__init__()
        self.attention, self.proj = Attention(env, 0, scale=1.0), Linear(4, 4, env)


class Tiny(Model):
    def __init__(self) -> None:
        shape = AttentionShape(layers=1, heads=1, kv_heads=1, dim=4)
        env = BuildEnv(attention=Nowhere(shape, CPU))
        super().__init__(SimpleNamespace(), env)
        self.layers = torch.nn.ModuleList([Block(env)])


class Same(LayerAdapter):
    def after(self, x: Tensor, y: Tensor) -> None: ...


@pytest.fixture
def extension(tmp_path: Path) -> Lora:
    """Return an extension with two loaded adapters of a tiny model."""

    def read(request: AdapterRequest) -> Adapter:
        return Adapter(layers={request.layers[0].name: Same()})

    ranks = RankLink("lora", SINGLE_RANK, CPU, send_nothing)
    adapters = Adapters(read, device=CPU, dtype=torch.float32, most=None, ranks=ranks)
    paths = (f"x={tmp_path}", f"y={tmp_path}")
    extension = Lora(adapters, paths=paths, most_in_step=1, captures=False)
    extension.install(Tiny(), Kernels())
    return extension


@pytest.mark.parametrize("adapters", [(None,), ("x",), ("x", None, "y", "y")], ids=str)
def test_it_keeps_the_contract(extension: Lora, adapters: tuple[str | None, ...]) -> None:
    check_step_extension(extension, fields={"adapter": adapters})


def in_use(extension: Lora) -> list[str]:
    (info,) = extension.infos()
    assert info.name == "lora_requests_info" and info.value > 1e9
    return [value for _, value in info.labels]


def test_adapters_of_running_and_of_waiting_requests_are_reported(extension: Lora) -> None:
    requests = {id: Request(id=id, tokens=(1, 2), adapter=name) for id, name in (("1", "y"), ("2", "x"), ("3", None))}
    sequences: dict[str, Any] = {id: Sequence.of(request, 100) for id, request in requests.items()}
    for sequence in sequences.values():
        extension.admit(sequence)
    assert in_use(extension) == ["1", "", "x,y"]
    sequences["1"].slots.extend([5, 6])
    sequences["3"].slots.extend([7, 8])
    assert in_use(extension) == ["1", "y", "x"]
    for sequence in sequences.values():
        extension.finished(sequence)
    assert in_use(extension) == ["1", "", ""]


def plain(path: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model=ModelOptions(path=str(path), device="cpu", dtype="float32"),
        cache=CacheOptions(max_total_tokens=256),
        adapters=AdapterOptions(**options),
        plugins=PluginOptions(block=("step-extension:lora",)),
    )


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"enabled": True}, "--enable-lora"),
        ({"paths": ("x=/x", "/y")}, "--lora-paths x=/x /y"),
        ({"most_in_step": 3}, "--max-loras-per-batch 3"),
        ({"most_loaded": 3}, "--max-loaded-loras 3"),
    ],
)
@pytest.mark.parametrize("blocked", ["lora", "step-extension:lora"])
def test_a_server_without_it_refuses_its_options(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any], options: dict[str, Any], option: str, blocked: str
) -> None:
    config = plain(tiny_model("llama-3.2-1b").path, **options)
    with pytest.raises(ConfigError, match=f"^{option}: the step extension 'lora', which serves this option, is not"):
        serve(replace(config, plugins=PluginOptions(block=(blocked,))))


def test_a_server_without_it_refuses_requests_with_adapters_only(
    tiny_model: Callable[[str], Any], serve: Callable[..., Any]
) -> None:
    engine = serve(plain(tiny_model("llama-3.2-1b").path))
    request = Request(id="1", tokens=(1, 2, 3))
    with pytest.raises(RequestError, match="^adapter: no step extension that serves this field of requests is loaded"):
        engine.outputs([replace(request, adapter="x")])
    assert engine.outputs([request])[0].tokens
    assert "adapters" not in engine.info
