"""Deprecation warnings name the plugin and the location of the use."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from sglang_plug.deprecation import warn_deprecated


@contextmanager
def plugin(folder: Path, source: str) -> Iterator[ModuleType]:
    """Import a module in place of a plugin's."""
    file = folder / "sglang_plug_example.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("sglang_plug_example", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_the_location_is_that_of_the_import(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning) as caught, plugin(tmp_path, "\n\nfrom sglang_plug import Team\n"):
        warning = caught[0]
    assert (Path(warning.filename).name, warning.lineno) == ("sglang_plug_example.py", 3)
    assert str(warning.message) == "sglang_plug_example: sglang_plug.Team is now sglang_plug.RankGroup"


def test_a_class_with_an_old_form_is_the_location(tmp_path: Path) -> None:
    with plugin(tmp_path, "VALUE = 1\n\n\nclass Policy:\n    def rank(self): ...\n") as module:
        with pytest.warns(DeprecationWarning, match="^sglang_plug_example: rename rank") as caught:
            warn_deprecated("rename rank", owner=module.Policy)
    assert (Path(caught[0].filename).name, caught[0].lineno) == ("sglang_plug_example.py", 4)


def test_a_class_without_a_file_has_a_warning_too() -> None:
    owner = type("Made", (), {"__module__": "nowhere"})
    with pytest.warns(DeprecationWarning, match="^nowhere: old form"):
        warn_deprecated("old form", owner=owner)


def test_filters_for_the_plugin_apply(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="sglang_plug_example")
        with plugin(tmp_path, "from sglang_plug import Team\n") as module:
            assert module.Team.__name__ == "RankGroup"


def test_each_location_warns_once(tmp_path: Path) -> None:
    with (
        plugin(tmp_path, "import sglang_plug\n\n\ndef use():\n    return sglang_plug.Team\n") as module,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("default")
        module.use()
        module.use()
    assert len(caught) == 1
