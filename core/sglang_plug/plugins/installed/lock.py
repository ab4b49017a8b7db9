"""Lock files: the plugins of an installation with versions and hashes, and the check that nothing else is imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.plugins.hookspecs import API_VERSION

from .discovery import DiscoveredPlugin

LOCK_VERSION = 1
INSTALLER_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of a distribution's metadata that depend on how and where it was installed."""
FEW = 3
"""Maximum number of plugins of a distribution that a message names."""
COMPILED = "__pycache__"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPlugin:
    """A plugin in a lock file."""

    name: str
    distribution: str
    version: str
    sha256: str
    """Hash of the names and contents of the files of its distribution, or of the file of a one-file plugin."""


def freeze(plugins: Sequence[DiscoveredPlugin]) -> str:
    """Return the text of the lock file of ``plugins``."""
    rows = [asdict(plugin) for plugin in _locked(plugins)]
    return json.dumps({"lock_version": LOCK_VERSION, "api_version": API_VERSION, "plugins": rows}, indent=2)


def check_lock(file: str, plugins: Sequence[DiscoveredPlugin]) -> None:
    """Compare ``plugins``, none of which is imported yet, with a lock file.

    Raises ``ConfigError`` that names every difference, or says why the file cannot be read.
    """
    expected = {(plugin.name, plugin.distribution): plugin for plugin in _read(file)}
    actual = {(plugin.name, plugin.distribution): plugin for plugin in _locked(plugins)}
    plugins_with: dict[tuple[str, str], list[str]] = {}
    for name, distribution in sorted(expected.keys() | actual.keys()):
        difference = _difference(expected.get((name, distribution)), actual.get((name, distribution)))
        if difference:
            plugins_with.setdefault((distribution, difference), []).append(name)
    if plugins_with:
        lines = "".join(f"\n  {_title(names, of)} {text}" for (of, text), names in plugins_with.items())
        raise ConfigError(f"--locked: the plugins are not those of {file!r}:{lines}")


def _title(names: Sequence[str], distribution: str) -> str:
    """Return the plugins of a distribution that differ in the same way, as the subject of a sentence."""
    if len(names) == 1:
        return f"plugin {names[0]!r} of {distribution}"
    listed = ", ".join(map(repr, names[:FEW])) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
    return f"each of the plugins {listed} of {distribution}"


def _difference(expected: LockedPlugin | None, actual: LockedPlugin | None) -> str:
    """Return how a plugin differs from its entry in the lock file, as a predicate; empty if it does not."""
    if expected is None or actual is None:
        return "is missing" if actual is None else "is not in the lock file"
    if expected.version != actual.version:
        return f"has version {actual.version}, and {expected.version} is locked"
    if expected.sha256 != actual.sha256:
        return f"has other files, though its version is {actual.version}"
    return ""


def _read(file: str) -> list[LockedPlugin]:
    try:
        content: Any = json.loads(Path(file).read_text(encoding="utf-8"))
        versions = content["lock_version"], content["api_version"]
        plugins = [LockedPlugin(**row) for row in content["plugins"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"--locked: {file!r} cannot be read: {type(error).__name__}: {error}") from error
    if versions != (LOCK_VERSION, API_VERSION):
        raise ConfigError(
            f"--locked: {file!r} is of version {versions[0]} for plugin API {versions[1]}, and this is version "
            f"{LOCK_VERSION} for API {API_VERSION}; write it again with: sglang-plug plugins freeze"
        )
    if not all(isinstance(value, str) for plugin in plugins for value in asdict(plugin).values()):
        raise ConfigError(f"--locked: {file!r} has a plugin with a value that is not text")
    return plugins


def _locked(plugins: Sequence[DiscoveredPlugin]) -> Iterator[LockedPlugin]:
    hash_of = cache(_hash)  # many plugins share a distribution and a package
    for plugin in plugins:
        distribution = "" if plugin.explicit else plugin.distribution
        try:
            sha256 = hash_of(plugin.file, plugin.path, distribution, plugin.module.partition(".")[0])
        except (OSError, ImportError, ValueError) as error:
            raise ConfigError(
                f"the files of plugin {plugin.name!r} of {plugin.origin} cannot be read: {error}"
            ) from error
        yield LockedPlugin(name=plugin.name, distribution=plugin.distribution, version=plugin.version, sha256=sha256)


def _hash(file: str | None, path: str | None, distribution: str, package: str) -> str:
    """Return the hash of a one-file plugin, or of a distribution and the package of its declaring module."""
    if file is not None:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    total = hashlib.sha256()
    for name, location in sorted(_files(path, distribution, package).items()):
        total.update(f"{name}\0{hashlib.sha256(location.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def plugin_files(plugin: DiscoveredPlugin) -> list[tuple[str, Path]]:
    """Return the files of a plugin, none of which is imported: relative name and location, by name.

    They are those of its distribution and of the package of its declaring module.
    """
    if plugin.file is not None:
        return [(Path(plugin.file).name, Path(plugin.file))]
    distribution = "" if plugin.explicit else plugin.distribution
    return sorted(_files(plugin.path, distribution, plugin.module.partition(".")[0]).items())


def _files(path: str | None, distribution: str, package: str) -> dict[str, Path]:
    files = dict(_distribution_files(distribution)) if distribution else {}
    return {**files, **dict(_package_files(package, path))}


def _distribution_files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the installed files of a distribution; scripts name the interpreter, so they are left out."""
    for file in importlib.metadata.distribution(name).files or ():
        location = Path(str(file.locate()))
        in_metadata = file.parts[0].endswith((".dist-info", ".egg-info"))
        is_generated = in_metadata and file.name in INSTALLER_FILES or file.name.startswith("__editable__")
        if ".." not in file.parts and COMPILED not in file.parts and not is_generated and location.is_file():
            yield file.as_posix(), location


def _package_files(package: str, path: str | None) -> Iterator[tuple[str, Path]]:
    """Yield the files of a top-level package or module without importing it; in ``path``, if that is given."""
    for root in _locations(package, path):
        files: Iterable[Path] = root.rglob("*") if root.is_dir() else [root]
        for file in files:
            if file.is_file() and COMPILED not in file.parts:
                yield file.relative_to(root.parent).as_posix(), file


def _locations(package: str, path: str | None) -> list[Path]:
    if path is not None:
        return [candidate for candidate in (Path(path, package), Path(path, f"{package}.py")) if candidate.exists()][:1]
    if not package:
        return []
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(location) for location in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []
