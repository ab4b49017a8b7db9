"""Tests of weight updates while the engine runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sglang_plug import EngineConfig, Request, RequestError, SamplingParams
from sglang_plug.config import CacheOptions, ModelOptions

PROMPT = tuple(range(5, 45))


def request(id: str) -> Request:
    return Request(id=id, tokens=PROMPT, params=SamplingParams(max_new_tokens=8, temperature=0.0))


def copy_of(path: Path, target: Path, **changes: Any) -> Path:
    """Write the checkpoint with other random weights, and with ``changes`` in its configuration."""
    target.mkdir()
    config = json.loads((path / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **changes}))
    torch.manual_seed(1)
    weights = load_file(path / "model.safetensors")
    save_file({name: torch.randn_like(tensor) * 0.2 for name, tensor in weights.items()}, target / "model.safetensors")
    return target


def test_new_weights_serve_and_old_prefixes_are_forgotten(
    tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = copy_of(old, tmp_path / "new")

    def engine(path: Path) -> Any:
        return serve(
            EngineConfig(model=ModelOptions(path=str(path), device="cpu"), cache=CacheOptions(max_total_tokens=512))
        )

    updated, fresh = engine(old), engine(new)
    before = updated.outputs([request("a")])[0].tokens
    assert updated.control("update_weights", source=str(new))["success"]
    (after,) = updated.outputs([request("b")])
    assert after.tokens == fresh.outputs([request("c")])[0].tokens != before
    assert after.cached_tokens == 0
    assert updated.control("update_weights", source=str(old))["success"]
    assert updated.outputs([request("d")])[0].tokens == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"hidden_size": 32}, "'hidden_size': served 64, found 32"), ({"rms_norm_eps": 0.5}, "rms_norm_eps")],
)
def test_another_shape_is_refused_and_the_old_weights_serve_on(
    changes: dict[str, Any], message: str, tiny_model: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    old = tiny_model("llama-3.2-1b").path
    engine = serve(
        EngineConfig(model=ModelOptions(path=str(old), device="cpu"), cache=CacheOptions(max_total_tokens=512))
    )
    before = engine.outputs([request("a")])[0].tokens
    with pytest.raises(RequestError, match=message):
        engine.control("update_weights", source=str(copy_of(old, tmp_path / "other", **changes)))
    with pytest.raises(RequestError, match="Failed to get weights iterator: .*nowhere"):
        engine.control("update_weights", source=str(tmp_path / "nowhere"))
    damaged = copy_of(old, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(RequestError, match="Failed to get weights iterator"):
        engine.control("update_weights", source=str(damaged))
    assert engine.outputs([request("b")])[0].tokens == before
