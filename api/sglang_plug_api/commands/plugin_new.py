"""``sglang-plug plugins new``: creates a complete distribution with one component."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang_plug import PluginError, Plugins
from sglang_plug.system.hints import did_you_mean
from sglang_plug_api.scaffold.names import PluginNames
from sglang_plug_api.scaffold.rendering import component_name, render_plugin, template_kinds


def add_new_action(actions: Any) -> None:
    """Add the action ``new`` to the subparsers of ``sglang-plug plugins``."""
    parser = actions.add_parser("new", help="create a distribution with a component that works and passes its tests")
    parser.add_argument("kind", metavar="KIND", help=f"kind of the component: {', '.join(template_kinds())}")
    parser.add_argument("name", metavar="NAME", help="name of the component; the distribution is sglang-plug-NAME")
    parser.add_argument(
        "--into", metavar="DIR", default=".", help="parent folder of the new distribution (default: the current folder)"
    )
    parser.set_defaults(act=create_plugin)


def create_plugin(options: argparse.Namespace, plugins: Plugins) -> int:
    """Write the files of the distribution; return the exit status. Raises ``PluginError``."""
    kinds = template_kinds()
    if options.kind not in kinds:
        hint = did_you_mean(options.kind, kinds) or f"; known: {', '.join(kinds)}"
        raise PluginError(f"no kind of components named {options.kind!r}{hint}")
    names = PluginNames.of(options.name)
    component = component_name(options.kind, names)
    if others := [candidate for candidate in plugins.all(options.kind) if candidate.spec.name == component]:
        raise PluginError(f"there is {others[0]} already, so the plugin needs another name")
    folder = Path(options.into) / names.distribution
    files = render_plugin(options.kind, names)
    _write(folder, files)
    for path in files:
        print(folder / path)
    print(
        f"\n{options.kind}:{component} is ready. Next:\n"
        f"  pip install -e '{folder}[test]'\n"
        f"  sglang-plug plugins test --strict {names.distribution}\n"
        f"  pytest {folder}"
    )
    return 0


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Create the folder with its files, or nothing. Raises ``PluginError`` if it exists or cannot be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        raise PluginError(f"{folder} exists already; nothing was written") from None
    except OSError as error:
        raise PluginError(f"{folder} cannot be created: {error}") from error
    try:
        for path, content in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise PluginError(f"{folder} cannot be written: {error}") from error
        raise
