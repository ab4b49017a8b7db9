"""Steps of short prompts are timed both ways."""

from __future__ import annotations

import pytest

from benchmarks import gpu_prompts


def test_both_ways_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_prompts, "LENGTHS", (4, 8))
    monkeypatch.setattr(gpu_prompts, "REPEATS", 4)
    found = gpu_prompts.prompt_steps("cpu", "torch", "tiny")["tiny"]
    assert list(found) == ["4", "8"]
    for one in found.values():
        assert one["ratio"] == pytest.approx(one["eager"] / one["pieces"]) and one["pieces"] > 0
