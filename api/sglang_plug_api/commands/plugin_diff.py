"""``sglang-plug plugins diff``: differences between two versions of the contract, and whether they affect a plugin."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sglang_plug import PluginError, Plugins
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin, normalise
from sglang_plug.plugins.installed.lock import plugin_files
from sglang_plug_api.contract.changes import Change, compare
from sglang_plug_api.contract.surface import Surface, read_surface
from sglang_plug_api.contract.usage import AffectedLocations, Location, read_usage

IGNORED = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages"})
"""Folders whose files are not the plugin's own."""
LEVELS = ("breaking", "review", "deprecated", "added")
MAX_LOCATIONS = 5


def add_diff_action(actions: Any) -> None:
    """Add the action ``diff`` to the subparsers of ``sglang-plug plugins``."""
    parser = actions.add_parser(
        "diff", help="what changed between two versions of the contract; status 1 if something breaks"
    )
    parser.add_argument("old", metavar="OLD", help="a version of the contract, such as 1.0, or a file with one")
    parser.add_argument("new", metavar="NEW", help="the other version, or a file with one")
    parser.add_argument(
        "--for", dest="user", metavar="DIST", help="only what affects this distribution, plugin, folder or file"
    )
    parser.set_defaults(act=print_changes)


def print_changes(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the changes; return 1 if one breaks the plugin, or any plugin if none is named. Raises ``PluginError``."""
    old, new = read_surface(options.old), read_surface(options.new)
    changes = compare(old, new)
    print(f"contract {_title(old)} -> {_title(new)}")
    affected: list[tuple[Change, list[Location]]] = [(change, []) for change in changes]
    if options.user is not None:
        usage = read_usage(_files(options.user, plugins))
        for line in usage.unreadable:
            print(f"not read   {line}")
        locations = AffectedLocations(usage, old)
        affected = [(change, uses) for change in changes if (uses := locations.of(change))]
    for level in LEVELS:
        for change, uses in affected:
            if change.level == level:
                _print_change(change, uses)
    return _summary([change for change, _ in affected], options.user)


def _title(surface: Surface) -> str:
    state = f"sglang-plug {surface.released}" if surface.released else "not released"
    return f"{surface.contract} ({state}, routes {surface.routes})"


def _print_change(change: Change, locations: Sequence[Location]) -> None:
    print(f"{change.level:<10} {change.title} {change.text}")
    for location in locations[:MAX_LOCATIONS]:
        print(f"{'':<10}   {location}")
    if len(locations) > MAX_LOCATIONS:
        print(f"{'':<10}   and {len(locations) - MAX_LOCATIONS} more")


def _summary(changes: Sequence[Change], plugin: str | None) -> int:
    breaking = sum(change.level == "breaking" for change in changes)
    subject = "plugins" if plugin is None else plugin
    number = f"{len(changes)} change{'' if len(changes) == 1 else 's'}"
    print(f"{number}, {breaking} of them {'breaks' if breaking == 1 else 'break'} {subject}")
    return 1 if breaking else 0


def _files(plugin: str, plugins: Plugins) -> list[tuple[str, Path]]:
    """Return the Python files of a distribution, folder or file, with the names to show."""
    path = Path(plugin)
    if path.is_file():
        return [(path.name, path)]
    if path.is_dir():
        files = [
            (file.relative_to(path).as_posix(), file) for file in sorted(path.rglob("*.py")) if _is_own(file, path)
        ]
    else:
        packages = {  # plugins of one package have the same files
            (chosen.distribution, chosen.path, chosen.file, chosen.module.partition(".")[0]): chosen
            for chosen in _of(plugin, plugins)
        }
        files = sorted({name: file for chosen in packages.values() for name, file in _python(chosen)}.items())
    if not files:
        raise PluginError(f"{plugin!r} has no Python files")
    return files


def _is_own(file: Path, root: Path) -> bool:
    folders = file.relative_to(root).parts[:-1]
    return not any(folder in IGNORED or folder.startswith(".") for folder in folders)


def _of(name: str, plugins: Plugins) -> list[DiscoveredPlugin]:
    every = [*plugins.loaded, *(failure.plugin for failure in plugins.failures), *plugins.blocked]
    chosen = [candidate for candidate in every if name == candidate.name or normalise(name) == candidate.distribution]
    if not chosen:
        raise PluginError(
            f"{name!r} is neither an installed plugin or distribution nor a folder or file; "
            "see: sglang-plug plugins list"
        )
    return chosen


def _python(plugin: DiscoveredPlugin) -> Iterator[tuple[str, Path]]:
    for name, file in plugin_files(plugin):
        if file.suffix == ".py":
            yield name, file
