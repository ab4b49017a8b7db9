"""Discovery of plugins: entry points of installed distributions, single files, and folders."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sglang_plug.config import ConfigError, PluginOptions

GROUP = "sglang_plug"
DISTRIBUTION = "sglang-plug"


@dataclass(frozen=True, slots=True)
class DiscoveredPlugin:
    """A plugin that could be loaded, and its distribution."""

    name: str
    distribution: str
    version: str
    module: str
    file: str | None = None
    """The file to load, for a one-file plugin."""
    path: str | None = None
    """The entry that ``sys.path`` needs, for a plugin in a folder."""
    load_error: str = ""
    """The reason that it cannot be loaded, if it is known beforehand."""

    @property
    def explicit(self) -> bool:
        """True if the user named this file or folder, so that an allow-list need not repeat it."""
        return self.file is not None or self.path is not None

    @property
    def origin(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}"

    def load(self) -> ModuleType:
        """Import the declaring module."""
        if self.load_error:
            raise ConfigError(self.load_error)
        if self.path is not None and self.path not in sys.path:
            sys.path.append(self.path)
        if self.file is None:
            return importlib.import_module(self.module)
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.file} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.module] = module
        spec.loader.exec_module(module)
        return module


def find_plugins(options: PluginOptions) -> list[DiscoveredPlugin]:
    """Return every plugin: sglang-plug's own first, then by distribution and name; files and folders come last.

    Raises ``ConfigError`` if a named file or folder is missing or unreadable.
    """
    plugins = sorted(
        _installed(), key=lambda plugin: (plugin.distribution != DISTRIBUTION, plugin.distribution, plugin.name)
    )
    for folder in options.dirs:
        plugins += _in_folder(Path(folder))
    for file in options.files:
        plugins.append(_one_file(Path(file)))
    return _without_copies(plugins)


def _without_copies(plugins: list[DiscoveredPlugin]) -> list[DiscoveredPlugin]:
    """Keep the first copy of each plugin: an installed one hides the folder it was installed from."""
    kept: dict[tuple[str, str], DiscoveredPlugin] = {}
    for plugin in plugins:
        first = kept.setdefault((plugin.distribution, plugin.name), plugin)
        if first.version != plugin.version and not first.load_error:
            load_error = (
                f"version {first.version} is loaded already; uninstall it to use {plugin.version} from {plugin.path}"
            )
            kept[plugin.distribution, f"{plugin.name} {plugin.version}"] = replace(plugin, load_error=load_error)
    return list(kept.values())


def _installed() -> Iterator[DiscoveredPlugin]:
    names = set[str]()
    for distribution in importlib.metadata.distributions():
        try:
            points = [point for point in distribution.entry_points if point.group == GROUP]
        except Exception as error:
            if GROUP in (distribution.read_text("entry_points.txt") or ""):
                name, version = _name_and_version(distribution)
                yield DiscoveredPlugin(
                    name, name, version, "", load_error=f"its entry_points.txt cannot be read: {error}"
                )
            continue
        if not points:
            continue
        name, version = _name_and_version(distribution)
        if name in names:  # an earlier entry of sys.path shadows this one
            continue
        names.add(name)
        for point in points:
            yield DiscoveredPlugin(point.name, name, version, point.value)


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Read name and version of a distribution. Slow: metadata are parsed at each access."""
    metadata = distribution.metadata
    return normalise(metadata["Name"] or "unnamed"), metadata["Version"] or "unknown"


def normalise(name: str) -> str:
    """Return a distribution's name in its canonical spelling (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _one_file(file: Path) -> DiscoveredPlugin:
    if not file.is_file():
        raise ConfigError(f"--plugin: there is no file {str(file)!r}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    path = str(file.resolve())
    # other files may have the same name
    module = (
        f"sglang_plug_file_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    )
    return DiscoveredPlugin(file.stem, str(file), digest, module, file=path)


def _in_folder(folder: Path) -> Iterator[DiscoveredPlugin]:
    if not folder.is_dir():
        raise ConfigError(f"--plugins-dir: there is no folder {str(folder)!r}")
    for path in sorted(folder.glob("*.py")):
        yield _one_file(path)
    for project in sorted([*folder.glob("pyproject.toml"), *folder.glob("*/pyproject.toml")]):
        table = _project_table(project)
        if normalise(table.get("name", "")) == DISTRIBUTION:
            continue
        points = table.get("entry-points", {}).get(GROUP, {})
        root = project.parent / "src" if (project.parent / "src").is_dir() else project.parent
        for name, module in sorted(points.items()):
            yield DiscoveredPlugin(
                name,
                normalise(table.get("name", project.parent.name)),
                str(table.get("version", "0")),
                module,
                path=str(root.resolve()),
            )


def _project_table(file: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plugins-dir: {str(file)!r} cannot be read: {error}") from error
    return table
