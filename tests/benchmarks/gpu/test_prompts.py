"""Steps of short prompts are timed both ways."""

from __future__ import annotations

import pytest

from benchmarks.gpu import prompts as gpu_prompts


def test_both_ways_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_prompts, "LENGTHS", (4, 8))
    monkeypatch.setattr(gpu_prompts, "REPEATS", 4)
    outcome = gpu_prompts.prompt_steps("cpu", "torch", "tiny")["tiny"]
    assert list(outcome) == ["4", "8"]
    for result in outcome.values():
        assert result["ratio"] == pytest.approx(result["eager"] / result["pieces"]) and result["pieces"] > 0
