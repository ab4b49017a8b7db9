"""Tests that the distributions under ``plugins/`` import only public names, and that nothing depends on them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import sglang_plug
import sglang_plug_api.plugin
import sglang_plug_lang

SGLANG_NAMES = ("sglang_plug_lang.lang.", "sglang_plug_lang.srt.", "sglang_plug_lang.test.")
"""Packages of the frontend language with the names that programs for SGLang import."""
PUBLIC_PACKAGES = ("sglang_plug.layers.", "sglang_plug.testing.", *SGLANG_NAMES)


def test_only_public_names_are_imported(plugin_sources: list[Any]) -> None:
    public = {f"sglang_plug.{name}" for name in sglang_plug.__all__}
    public |= {f"sglang_plug_api.plugin.{name}" for name in sglang_plug_api.plugin.__all__}
    public |= {"sglang_plug_api.Engine", "sglang_plug_lang", "sglang_plug_lang.utils.*"}
    public |= {f"sglang_plug_lang.{name}" for name in sglang_plug_lang.__all__}
    for source in plugin_sources:
        own = source.path.parts[1].replace("-", "_")
        ours = {name for name in source.imports() if name.startswith("sglang_plug")}
        foreign = {name for name in ours if name.partition(".")[0] != own}
        assert not {name for name in foreign - public if not name.startswith(PUBLIC_PACKAGES)}, source.path


def test_every_plugin_is_a_distribution_with_a_readme_and_tests(root: Path) -> None:
    folders = [folder for folder in sorted((root / "plugins").iterdir()) if folder.is_dir()]
    assert folders
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        assert project["name"] == folder.name
        assert project["entry-points"]["sglang_plug"]
        assert (folder / "README.md").is_file()
        assert list((folder / "tests").glob("test_*.py"))
        assert folder.name in (root / "plugins" / "README.md").read_text()


def test_nothing_depends_on_a_plugin(root: Path, sources: list[Any]) -> None:
    names = {folder.name.replace("-", "_") for folder in (root / "plugins").iterdir() if folder.is_dir()}
    for source in sources:
        assert not {name.partition(".")[0] for name in source.imports()} & names, source.path
