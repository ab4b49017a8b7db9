"""Tensor-parallel ranks record and replay their decode steps together, all-reduces included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.executors import decode_graphs
from sglang_plug.engine.messages.api_messages import Control
from tests.builtin_backends.avx512.test_generation import Engine, crowd, prompt
from tests.e2e.test_update_weights import copy_of

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def build(path: Path, *, graphs: bool, ranks: int = 2, **more: Any) -> Engine:
        engines.append(Engine(path, graphs=graphs, ranks=ranks, **more))
        return engines[-1]

    yield build
    for engine in engines:
        if engine.loop.ranks is not None:
            engine.loop.ranks.close()


@pytest.mark.parametrize(("family", "ranks"), [("qwen3-0.6b", 2), ("llama-3.2-1b", 4)])
def test_families(family: str, ranks: int, tiny_model: Callable[..., Any], make: Callable[..., Engine]) -> None:
    path = tiny_model(family).path
    plain, recorded = (make(path, graphs=graphs, ranks=ranks) for graphs in (False, True))
    expected = crowd(plain)
    assert crowd(recorded) == expected and len(expected) == 31
    assert all(recorded.replayed[size] for size in (1, 3, 8)) and not recorded.replayed[9]


def test_replays_that_are_launched_one_ahead(tiny_model: Callable[..., Any], make: Callable[..., Engine]) -> None:
    """Tokens of a launched step are passed from rank to rank on the device."""
    ahead, plain = (make(tiny_model("llama-3.2-1b").path, graphs=on, overlap=on) for on in (True, False))
    for engine in (ahead, plain):
        for size in (1, 3, 8):
            for row in range(size):
                engine.submit(f"{size} {row}", prompt(30 - row, row), 4 + 3 * row)
            engine.finish()
    assert ahead.outputs == plain.outputs and len(ahead.outputs) == 12
    assert ahead.replayed.total() > 20


def test_all_serve_without_what_none_can_record(tiny_model: Callable[..., Any], make: Callable[..., Engine]) -> None:
    path = tiny_model("qwen3-moe").path
    recorded, plain = (make(path, graphs=graphs) for graphs in (True, False))
    assert decode_graphs(recorded.loop.runner) is not None and not decode_graphs(recorded.loop.runner).captured
    assert crowd(recorded) == crowd(plain)


def test_new_weights_are_recorded(tiny_model: Callable[..., Any], tmp_path: Path, make: Callable[..., Engine]) -> None:
    old = tiny_model("llama-3.2-1b").path
    new = copy_of(old, tmp_path / "new")
    updated, fresh = make(old, graphs=True), make(new, graphs=False)
    updated.submit("before", prompt(9, 1), 6)
    before = updated.finish()["before"]
    updated.messages.append(Control(1, "update_weights", {"source": str(new)}))
    updated.loop.step()
    assert updated.replies[0].error is None
    for engine in (updated, fresh):
        engine.submit("after", prompt(9, 1), 6)
        engine.finish()
    assert updated.outputs["after"] == fresh.outputs["after"] != before
    assert updated.replayed[1] >= 8
