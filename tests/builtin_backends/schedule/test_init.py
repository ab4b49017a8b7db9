from __future__ import annotations

from sglang_plug import Facts, Plugins


def test_auto_has_an_answer() -> None:
    assert Plugins.discover().resolve("schedule", "auto", Facts()).spec.name == "fair"
