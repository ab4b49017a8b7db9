"""Tests of ``GET /activity`` after the engine has served requests."""

from __future__ import annotations

from typing import Any


def test_slots_add_up_and_no_text_is_shown(app: Any) -> None:
    app.post("/generate", {"text": "a very secret prompt", "sampling_params": {"max_new_tokens": 4}})
    answer = app.get("/activity")
    activity = answer.json()
    slots = activity["slots"]
    parts = ("free", "cached_unused", "cached_in_use", "running")
    assert sum(slots[name] for name in parts) == slots["capacity"]
    assert activity["prefix_cache"]["tokens"] == slots["cached_unused"] > 0
    assert sum(run["tokens"] for run in activity["prefix_cache"]["runs"]) == activity["prefix_cache"]["tokens"]
    assert (activity["running"], activity["waiting"], activity["callers"]) == ([], [], [])
    assert "secret" not in answer.text
