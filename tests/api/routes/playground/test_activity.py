"""``GET /activity`` of an engine that has served something."""

from __future__ import annotations

from typing import Any


def test_slots_add_up_and_no_text_is_shown(app: Any) -> None:
    app.post("/generate", {"text": "a very secret prompt", "sampling_params": {"max_new_tokens": 4}})
    answer = app.get("/activity")
    shown = answer.json()
    slots = shown["slots"]
    parts = ("free", "cached_unused", "cached_in_use", "running")
    assert sum(slots[name] for name in parts) == slots["capacity"]
    assert shown["prefix_cache"]["tokens"] == slots["cached_unused"] > 0
    assert sum(run["tokens"] for run in shown["prefix_cache"]["runs"]) == shown["prefix_cache"]["tokens"]
    assert (shown["running"], shown["waiting"], shown["callers"]) == ([], [], [])
    assert "secret" not in answer.text
