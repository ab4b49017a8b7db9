"""Detection of plugins that import heavy libraries while they declare components; measured in a fresh process.

A declaring module is imported by every command, so a heavy import there delays even ``--help``.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence

from sglang_plug.config import ConfigError
from sglang_plug.plugins.discovery import Found
from sglang_plug.plugins.hookspecs import hookimpl
from sglang_plug.system.child_process import child_environment, python_command

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "triton",
    "flashinfer",
    "jax",
    "fastapi",
    "uvicorn",
    "pydantic",
)


def heavy_imports(plugins: Sequence[Found]) -> dict[Found, list[str]]:
    """Map each plugin to the heavy libraries it imports while declaring; one that fails counts up to its failure.

    Raises ``ConfigError`` if the measuring process fails.
    """
    if not plugins or not _measure(plugins):  # nearly always: one process instead of one per plugin
        return {plugin: [] for plugin in plugins}
    return {plugin: _measure([plugin]) for plugin in plugins}


def _measure(plugins: Sequence[Found]) -> list[str]:
    work = json.dumps({"path": sys.path, "plugins": [dataclasses.asdict(plugin) for plugin in plugins]})
    command, environment = python_command(__name__), child_environment()
    process = subprocess.run(command, input=work, capture_output=True, text=True, env=environment)
    if process.returncode:
        raise ConfigError(f"measuring imports failed: {process.stderr.strip() or f'exit status {process.returncode}'}")
    names: list[str] = json.loads(process.stdout.splitlines()[-1])
    return names


def _declare(plugin: Found) -> None:
    module = plugin.load()
    marker = f"{hookimpl.project_name}_impl"
    for name, function in vars(module).items():
        if name.startswith("register_") and hasattr(function, marker):
            list(function() or ())


def main() -> None:
    """Read plugins from stdin, declare them, and print the heavy libraries that are loaded now."""
    work = json.load(sys.stdin)
    sys.path[:] = work["path"]
    before = set(sys.modules)
    for plugin in work["plugins"]:
        try:
            _declare(Found(**plugin))
        except Exception as error:  # discovery has reported it with its cause
            print(f"{plugin['name']}: {error}", file=sys.stderr)
    print(json.dumps([name for name in HEAVY if name in sys.modules and name not in before]))


if __name__ == "__main__":
    main()
