"""``sglang-plug plugins freeze``: prints a lock file, for ``sglang-plug serve --locked FILE``."""

from __future__ import annotations

import argparse
from typing import Any

from sglang_plug import PluginError, Plugins
from sglang_plug.plugins.installed.lock import freeze


def add_freeze_action(actions: Any) -> None:
    """Add the action ``freeze`` to the subparsers of ``sglang-plug plugins``."""
    parser = actions.add_parser(
        "freeze", help="print a lock file: plugins, versions and hashes, for --locked FILE of any command"
    )
    parser.set_defaults(act=print_lock)


def print_lock(options: argparse.Namespace, plugins: Plugins) -> int:
    """Print the lock file; return the exit status. Raises ``PluginError`` if a plugin failed to load."""
    if plugins.failures:
        lines = "".join(f"\n  {failure}" for failure in plugins.failures)
        raise PluginError(f"plugins that fail cannot be locked; repair or block them:{lines}")
    print(freeze(plugins.imported))
    return 0
