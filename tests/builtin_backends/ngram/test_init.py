from __future__ import annotations

from sglang_plug import Plugins


def test_it_is_declared_with_its_settings() -> None:
    component = Plugins.discover().get("drafter", "ngram")
    assert component.settings().min_match == 3
