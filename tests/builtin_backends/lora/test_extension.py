"""The extension of adapters keeps the contract; a server without it refuses requests and options that need it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from weakref import ref

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
    ComponentPanic,
    ConfigError,
    EngineConfig,
    ForwardBatch,
    Kernels,
    LayerAdapter,
    Model,
    PluginOptions,
    RankStep,
    Request,
    RequestError,
)
from sglang_plug.config import AdapterOptions, CacheOptions, ModelOptions
from sglang_plug.contracts.serving.executor import SINGLE_RANK
from sglang_plug.engine.extensions.build import RankLink, send_nothing
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.layers import Linear
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.lora.adapters import FORGET, LOAD, Adapters
from sglang_plug_backends.lora.extension import Lora
from sglang_plug_backends.lora.layer import LoraLayer, Pair
from sglang_plug_backends.lora.lora_batch import LoadedAdapter
from sglang_plug_backends.lora.worker_rank import WorkerRankLora, encode_owners

CPU = torch.device("cpu")
SINGLE = RankLink("lora", SINGLE_RANK, CPU, send_nothing)


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

    adapters = Adapters(read, device=CPU, dtype=torch.float32, max_loaded=None, ranks=SINGLE)
    paths = (f"x={tmp_path}", f"y={tmp_path}")
    extension = Lora(adapters, paths=paths, max_per_batch=1, captures=False)
    extension.install(Tiny(), Kernels())
    return extension


def test_an_unloaded_adapter_is_freed_when_its_last_request_ends(tmp_path: Path) -> None:
    """The last request's steps continue to use the unloaded adapter in the combined tables."""

    def read(request: AdapterRequest) -> Adapter:
        pair = Pair(slice(0, 4), torch.ones(2, 4), torch.ones(4, 2), 1.0)
        return Adapter(layers={request.layers[0].name: LoraLayer([pair])})

    model = Tiny()
    adapters = Adapters(read, device=CPU, dtype=torch.float32, max_loaded=None, ranks=SINGLE)
    extension = Lora(adapters, paths=(f"x={tmp_path}", f"y={tmp_path}"), max_per_batch=2, captures=False)
    extension.install(model, Kernels())
    sequences = [Sequence.of(Request(id=name, tokens=(1,), adapter=name), 9) for name in ("x", "y")]
    for sequence in sequences:
        extension.admit(sequence)
    unloaded = ref(adapters.find("x"))

    def step() -> None:
        owners = [sequence.extras[extension].adapter for sequence in sequences]
        with adapters.computing(owners, [1] * len(owners)):
            model.layers[0].proj(torch.ones(len(owners), 4))  # type: ignore[operator]

    step()
    adapters.unload("x")
    step()
    assert unloaded() is not None
    extension.finished(sequences[0])
    del sequence, sequences[0]
    assert unloaded() is None
    step()
    assert adapters.paths.keys() == {"y"}


def test_nothing_is_left_of_an_adapter_that_has_no_slot(tmp_path: Path) -> None:
    commands = list[list[Any]]()
    ranks = RankLink("lora", SINGLE_RANK, CPU, lambda name, command: commands.append(json.loads(command)))
    adapters = Adapters(
        lambda request: Adapter(layers={}), device=CPU, dtype=torch.float32, max_loaded=None, ranks=ranks
    )
    adapters.install(Tiny())
    adapters.tables = Mock(**{"put.side_effect": torch.OutOfMemoryError("no memory")})
    with pytest.raises(RequestError, match="adapter 'x' was not loaded: memory does not suffice"):
        adapters.load("x", str(tmp_path))
    assert adapters.paths == {} and commands == [[LOAD, 1, str(tmp_path)], [FORGET, 1]]


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


def test_the_other_ranks_learn_of_a_format_that_panics(tmp_path: Path) -> None:
    def read(request: AdapterRequest) -> Adapter:
        raise Panic("index out of bounds")

    ranks = Mock(size=2, rank=0)
    adapters = Adapters(read, device=CPU, dtype=torch.float32, max_loaded=None, ranks=ranks)
    adapters.install(Tiny())
    with pytest.raises(ComponentPanic, match="Panic: index out of bounds"):
        adapters.load("x", str(tmp_path))
    ranks.all_ranks_succeeded.assert_called_once_with(False)
    assert adapters.paths == {}


@pytest.mark.parametrize("numbers", [(0, 7), (8,)])
def test_a_worker_rank_computes_with_no_adapter_that_it_lacks(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    rank = WorkerRankLora(Adapters(Mock(), device=CPU, dtype=torch.float32, max_loaded=None, ranks=SINGLE))
    rank.held[7] = LoadedAdapter("7", "", "", {}, number=7)
    owners = [None if number == 0 else LoadedAdapter("", "", "", {}, number=number) for number in numbers]
    step, batch = RankStep(encode_owners(owners)), SimpleNamespace(query_lens=[1] * len(numbers))
    with pytest.raises(KeyError) if 8 in numbers else nullcontext():
        rank.prepare_step(step, batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("adapters", [(None,), ("x",), ("x", None, "y", "y")], ids=str)
def test_it_keeps_the_contract(extension: Lora, adapters: tuple[str | None, ...]) -> None:
    check_step_extension(extension, fields={"adapter": adapters})


def in_use(extension: Lora) -> list[str]:
    (info,) = extension.gauges()
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
        ({"max_per_batch": 3}, "--max-loras-per-batch 3"),
        ({"max_loaded": 3}, "--max-loaded-loras 3"),
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
