"""A step's parts are timed, and add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.tiny import write_tiny
from benchmarks.step_overhead import PARTS, Engine, measure, show


@pytest.fixture
def engines(tmp_path: Path) -> list[Engine]:
    write_tiny(tmp_path / "model", 64)
    return [Engine(tmp_path, count, capacity=1024, running=4, attention="benchmark-store") for count in (0, 3)]


def test_every_part_is_seen(engines: list[Engine]) -> None:
    costs = measure(engines, batch=3, context=5, steps=20)
    assert [(item.plugins, item.batch, item.context) for item in costs] == [(0, 3, 5), (3, 3, 5)]
    for cost in costs:
        assert list(cost.parts) == [*PARTS, "rest"]
        assert all(part > 0 for part in cost.parts.values())
        assert cost.outside == cost.step - cost.parts["forward"] - cost.parts["head"] > 0
    assert len(show(costs).splitlines()) == 4


def test_parts_add_up_to_the_step(engines: list[Engine]) -> None:
    engine = engines[1]
    engine.submit(2, 5, 20)
    for row in engine.steps(5):
        assert 0 < sum(row[part] for part in PARTS) < row["step"]
    engine.drain()
    assert engine.loop.scheduler.accounts()["free"] == 1024


def test_dummy_plugins_are_loaded(engines: list[Engine]) -> None:
    first, second = (len(engine.loop.info["fingerprint"]) for engine in engines)
    assert second == first + 3
