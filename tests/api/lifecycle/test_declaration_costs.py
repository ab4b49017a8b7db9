"""Heavy imports and delays of declarations are measured in a new process and attributed to the right plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_api.lifecycle.declaration_costs import DeclarationCost, declaration_costs


def test_built_in_plugins_import_nothing_heavy(discover: Any) -> None:
    loaded = discover().loaded
    assert "torch" in sys.modules, "this process proves nothing about a fresh one"
    assert declaration_costs(loaded) == {plugin: DeclarationCost() for plugin in loaded}


def test_the_guilty_plugin_is_named(discover: Any, plugin_file: Any) -> None:
    at_import = plugin_file("at_import", "import numpy")
    in_hook = plugin_file("in_hook", "@hookimpl\ndef register_models():\n    import pydantic\n    return []\n")
    light = plugin_file("light", "import json")
    plugins = discover(at_import, in_hook, light).loaded[-3:]
    assert {plugin.name: cost.heavy for plugin, cost in declaration_costs(plugins).items()} == {
        "at_import": ("numpy",),
        "in_hook": ("pydantic",),
        "light": (),
    }


def test_a_plugin_that_fails_is_measured_up_to_there(discover: Any, plugin_file: Any) -> None:
    failures = discover(plugin_file("broken", "import numpy\n1 / 0\n")).failures
    assert [cost.heavy for cost in declaration_costs([failures[0].plugin]).values()] == [("numpy",)]


def test_nothing_to_measure_starts_no_process() -> None:
    assert declaration_costs([]) == {}


@pytest.mark.slow
def test_a_plugin_that_waits_is_named_with_the_module(discover: Any, plugin_file: Any, tmp_path: Path) -> None:
    package = tmp_path / "plugins" / "sglang-plug-waits"
    (package / "sglang_plug_waits").mkdir(parents=True)
    (package / "pyproject.toml").write_text(
        '[project]\nname = "sglang-plug-waits"\n[project.entry-points.sglang_plug]\nwaits = "sglang_plug_waits"\n'
    )
    (package / "sglang_plug_waits" / "__init__.py").write_text("from . import inner\n")
    (package / "sglang_plug_waits" / "inner.py").write_text("import time\ntime.sleep(2)\n")
    in_hook = plugin_file(
        "in_hook", "import time\n@hookimpl\ndef register_models():\n    time.sleep(2)\n    return []\n"
    )
    light = plugin_file("light", "VALUE = 1")
    plugins = discover(in_hook, light, dirs=(str(tmp_path / "plugins"),)).loaded[-3:]
    costs = {plugin.name: cost for plugin, cost in declaration_costs(plugins).items()}
    assert costs["waits"].module == "module sglang_plug_waits.inner" and costs["waits"].waited >= 1.9
    assert costs["in_hook"].module.startswith("hook register_models of ") and costs["in_hook"].waited >= 1.9
    assert costs["light"].waited == 0.0


def test_computing_is_not_waiting(discover: Any, plugin_file: Any) -> None:
    source = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < 0.7: pass\n"
    (plugin,) = discover(plugin_file("computes", source)).loaded[-1:]
    assert declaration_costs([plugin])[plugin].waited == 0.0
