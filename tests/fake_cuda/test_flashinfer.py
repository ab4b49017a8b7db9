"""FlashInfer's wrappers get arrays on the right device and copy asynchronously from buffers that are not
overwritten."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.fake_cuda import flashinfer
from tests.fake_cuda.device.tensors import clock
from tests.fake_cuda.engine import Engine
from tests.fake_cuda.test_engine import submit_all_kinds
from tests.families import SHARED

BACKEND = "sglang_plug_backends.flashinfer.attention"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer.module())
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    yield
    sys.modules.pop(BACKEND, None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = LlamaConfig(
        **{**SHARED, "num_hidden_layers": 2}, num_attention_heads=4, num_key_value_heads=2, head_dim=64
    )
    path = tmp_path_factory.mktemp("wide")
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.mark.usefixtures("idle_device", "stand_in")
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8_e4m3"])
def test_no_step_waits(checkpoint: Path, graphs: bool, kv_dtype: str) -> None:
    engine = Engine(
        checkpoint,
        attention="flashinfer",
        dtype="bfloat16",
        kv_dtype=kv_dtype,
        disable_cuda_graph=not graphs,
        cuda_graph_max_bs=4,
    )
    clock.executed.clear()
    submit_all_kinds(engine)
    engine.finish()
    assert clock.executed["flashinfer"] > 0 and bool(clock.executed["graph"]) is graphs
