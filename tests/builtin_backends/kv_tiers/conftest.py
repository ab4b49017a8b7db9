"""Fixtures of engines with KV stores."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import EngineConfig
from sglang_plug.config import CacheOptions, ModelOptions, PluginOptions, ScheduleOptions
from tests.builtin_backends.kv_tiers.engine_requests import BLOCK, BROKEN_STORES, SLOW_PREFILL


@pytest.fixture
def config(tiny_model: Callable[[str], Any], tmp_path: Path) -> Callable[..., EngineConfig]:
    """Return ``config(*stores)``, the configuration of a tiny model with few slots, whose prompts are always loaded if
    stored.

    ``model`` is the name of a text model, or the folder of any model.
    """

    def make(
        *stores: str,
        model: str | Path = "llama-3.2-1b",
        slots: int = 256,
        files: Sequence[Path] = (),
        settings: dict[str, dict[str, Any]] | None = None,
        **cache: Any,
    ) -> EngineConfig:
        own = {
            "kv-tiers": {"block_tokens": BLOCK, "load": "always", "buffer_mib": 64},
            "disk": {"path": str(tmp_path / "blocks")},
        }
        return EngineConfig(
            model=ModelOptions(path=str(tiny_model(model).path if isinstance(model, str) else model), device="cpu"),
            cache=CacheOptions(max_total_tokens=slots, kv_stores=stores, **cache),
            schedule=ScheduleOptions(chunked_prefill_size=64),
            plugins=PluginOptions(files=tuple(map(str, files)), settings={**own, **(settings or {})}),
        )

    return make


@pytest.fixture
def slow_prefill(tmp_path: Path) -> Path:
    """Write a plugin that slows the computation of prompts."""
    file = tmp_path / "slow_prefill.py"
    file.write_text(textwrap.dedent(SLOW_PREFILL))
    return file


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Path]:
    """Write a plugin with KV stores that break the contract, and one that takes time to look up blocks."""
    file = tmp_path / "broken.py"
    file.write_text(textwrap.dedent(BROKEN_STORES))
    yield file
