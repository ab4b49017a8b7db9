"""Heavy imports while declaring are measured in a fresh process and blamed on the right plugin."""

from __future__ import annotations

import sys
from typing import Any

from sglang_plug_api.lifecycle.heavy_imports import heavy_imports


def test_built_in_plugins_import_nothing_heavy(discover: Any) -> None:
    loaded = discover().loaded
    assert "torch" in sys.modules, "this process proves nothing about a fresh one"
    assert heavy_imports(loaded) == {one: [] for one in loaded}


def test_the_guilty_plugin_is_named(discover: Any, plugin_file: Any) -> None:
    at_import = plugin_file("at_import", "import numpy")
    in_hook = plugin_file("in_hook", "@hookimpl\ndef register_models():\n    import pydantic\n    return []\n")
    light = plugin_file("light", "import json")
    plugins = discover(at_import, in_hook, light).loaded[-3:]
    assert {one.name: names for one, names in heavy_imports(plugins).items()} == {
        "at_import": ["numpy"],
        "in_hook": ["pydantic"],
        "light": [],
    }


def test_a_plugin_that_fails_is_measured_up_to_there(discover: Any, plugin_file: Any) -> None:
    failures = discover(plugin_file("broken", "import numpy\n1 / 0\n")).failures
    assert list(heavy_imports([failures[0].found]).values()) == [["numpy"]]


def test_nothing_to_measure_starts_no_process() -> None:
    assert heavy_imports([]) == {}
