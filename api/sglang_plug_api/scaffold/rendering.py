"""Rendering of templates: one folder for each kind of components, and one with the files that all plugins have.

The file ``kind.toml`` of a kind describes its component. Any other file becomes a file of the distribution. In its
path, ``PACKAGE`` and ``NAME`` are replaced and ``dot-`` becomes a dot; ``$`` marks the placeholders of its content.
"""

from __future__ import annotations

import datetime
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from sglang_plug import API_VERSION, __version__

from .names import PluginNames

TEMPLATES = Path(__file__).with_name("templates")
SHARED = "shared"
SUFFIX = ".tmpl"
KIND_FILE = f"kind.toml{SUFFIX}"
WIDTH = 120


def template_kinds() -> list[str]:
    """Return the kinds of components for which there are templates."""
    return sorted(folder.name for folder in TEMPLATES.iterdir() if folder.is_dir() and folder.name != SHARED)


def render_plugin(kind: str, names: PluginNames) -> dict[str, str]:
    """Return the files of a distribution that declares one component: path -> content."""
    sources = {**_sources(SHARED), **_sources(kind)}
    values = _values(_describe(kind, names), names, sources)
    return {_path(path, names): _fill(text, values) for path, text in sources.items()}


def component_name(kind: str, names: PluginNames) -> str:
    """Return the name under which the component is declared; a model has that of its architecture."""
    return str(_describe(kind, names)["component"])


def compatible_versions(version: str) -> str:
    """Return the bounds of a dependency on sglang-plug: ``>=0.3,<0.4``, from 1.0 on ``>=1.2,<2``."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return f">={major}.{minor},<{major + 1}" if major else f">=0.{minor},<0.{minor + 1}"


def _sources(folder: str) -> dict[str, str]:
    root = TEMPLATES / folder
    files = (path for path in sorted(root.rglob(f"*{SUFFIX}")) if path.name != KIND_FILE)
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _path(source: str, names: PluginNames) -> str:
    parts = source.removesuffix(SUFFIX).split("/")
    parts = [f".{part.removeprefix('dot-')}" if part.startswith("dot-") else part for part in parts]
    return "/".join(parts).replace("PACKAGE", names.package).replace("NAME", names.module)


def _describe(kind: str, names: PluginNames) -> Mapping[str, Any]:
    """Read the ``kind.toml`` of a kind, with the names filled in."""
    table = tomllib.loads((TEMPLATES / kind / KIND_FILE).read_text(encoding="utf-8"))
    values = {
        "name": names.short,
        "module": names.module,
        "package": names.package,
        "title_case": names.title_case,
    }
    values["component"] = _fill(table.get("component", "$name"), values)
    filled = {
        key: [_fill(item, values) for item in value] if isinstance(value, list) else _fill(value, values)
        for key, value in table.items()
    }
    return {**values, **filled}


def _values(kind: Mapping[str, Any], names: PluginNames, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each placeholder."""
    bounds = compatible_versions(__version__)
    dependencies = [f"sglang-plug{bounds}", *kind.get("dependencies", ())]
    has_samples = any("/sample/" in path for path in sources)
    return {
        **{key: value for key, value in kind.items() if isinstance(value, str)},
        "api_version": str(API_VERSION),
        "bounds": bounds,
        "dependencies": ", ".join(f'"{dependency}"' for dependency in dependencies),
        "distribution": names.distribution,
        "entry_point": names.short,
        "fields": "".join(f"        {line}\n" for line in _spec_fields(kind, sources)),
        "next_step": textwrap.fill(kind["next_step"], WIDTH, break_long_words=False, break_on_hyphens=False),
        "package_data": '\n[tool.setuptools.package-data]\n"*" = ["sample/**/*"]' if has_samples else "",
        "title_capital": kind["title"][0].upper() + kind["title"][1:],
        "year": str(datetime.date.today().year),
    }


def _spec_fields(kind: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the fields of the spec that depend on the kind, one in each line."""
    if f"PACKAGE/settings.py{SUFFIX}" in sources:
        yield 'settings=f"{__name__}.settings:Settings",'
    if f"PACKAGE/example.py{SUFFIX}" in sources:
        yield 'example=f"{__name__}.example:arguments",'
    yield from kind.get("fields", ())


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a template, and end it with one line break if it has several lines."""
    filled = Template(text).substitute(values)
    return f"{filled.rstrip()}\n" if text.endswith("\n") else filled
