"""Tests that the built-in observers can be loaded."""

from __future__ import annotations

from sglang_plug import Observer, Plugins


def test_observers_can_be_loaded() -> None:
    plugins = Plugins.discover()
    for name in ("prometheus", "log"):
        component = plugins.get("observer", name)
        assert component.plugin.name == "observers"
        assert issubclass(component.load(Observer), Observer)
