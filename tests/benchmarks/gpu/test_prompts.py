"""Steps of short prompts are timed both ways."""

from __future__ import annotations

import pytest

from benchmarks.gpu.prompts import prompt_steps


def test_both_ways_are_timed() -> None:
    outcome = prompt_steps("cpu", "torch", "tiny", lengths=(4, 8), repeats=4)["tiny"]
    assert list(outcome) == ["4", "8"]
    for result in outcome.values():
        assert result["ratio"] == pytest.approx(result["eager"] / result["pieces"]) and result["pieces"] > 0
