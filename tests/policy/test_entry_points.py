"""Every built-in folder is a plugin behind an entry point of its own, and declares without importing anything heavy."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

LIGHT = {"sglang_plug", "collections", "dataclasses", "typing", "__future__", "pathlib"}
LIGHT |= {"importlib", "logging", "os", "shutil"}  # to look for libraries and devices, which decide defaults

SHARED = {"sglang_plug_backends.grammars", "sglang_plug_models.common"}
"""Built-in folders that are no plugins, because several plugins share them."""


def entry_points(root: Path) -> dict[str, str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return dict(project["entry-points"]["sglang_plug"])


def test_built_in_folders_are_entry_points_and_the_other_way_round(root: Path, sources: list[Any]) -> None:
    packages = [source for source in sources if source.path.name == "__init__.py" and source.module.count(".") == 1]
    plugins = {
        source.module
        for source in packages
        if source.package.startswith("builtin") or "sglang_plug.hookimpl" in source.imports()
    }
    assert not {source.module for source in packages if "sglang_plug.hookimpl" in source.imports()} & SHARED
    assert plugins - SHARED == set(entry_points(root).values())


def test_a_backend_needs_no_other_backend(root: Path, sources: list[Any]) -> None:
    points = set(entry_points(root).values())
    for source in sources:
        if source.package == "builtin_backends":
            own = ".".join(source.module.split(".")[:2])
            used = {".".join(name.split(".")[:2]) for name in source.imports()}
            assert not used & points - {own}, source.path


def test_an_entry_point_is_named_after_its_folder(root: Path) -> None:
    points = entry_points(root)
    assert {name: module.rpartition(".")[2] for name, module in points.items()} == {name: name for name in points}
    assert list(points) == sorted(points)


def test_declaring_modules_import_nothing_heavy(root: Path, sources: list[Any], plugin_sources: list[Any]) -> None:
    declaring = [source for source in [*sources, *plugin_sources] if "sglang_plug.hookimpl" in source.imports()]
    assert len(declaring) > len(entry_points(root))
    for source in declaring:
        assert {name.partition(".")[0] for name in source.imports(typing=False)} <= LIGHT, source.path
