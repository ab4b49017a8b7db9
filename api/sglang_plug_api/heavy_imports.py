"""Which heavy libraries a plugin imports just by declaring itself; measured in a fresh process.

A declaring module is imported by every command, so a heavy import there delays even ``--help``.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence

from sglang_plug.config import ConfigError
from sglang_plug.discovery import Found
from sglang_plug.hookspecs import hookimpl

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
    """Plugin -> the heavy libraries it imports while declaring. Plugins that fail to load count up to there.

    Raises ``ConfigError`` if the measuring process fails.
    """
    if not plugins or not _measure(plugins):  # nearly always: one process instead of one for each
        return {one: [] for one in plugins}
    return {one: _measure([one]) for one in plugins}


def _measure(plugins: Sequence[Found]) -> list[str]:
    work = json.dumps({"path": sys.path, "plugins": [dataclasses.asdict(one) for one in plugins]})
    done = subprocess.run([sys.executable, "-m", __name__], input=work, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"measuring imports failed: {done.stderr.strip() or f'exit status {done.returncode}'}")
    names: list[str] = json.loads(done.stdout.splitlines()[-1])
    return names


def _declare(found: Found) -> None:
    module = found.load()
    marker = f"{hookimpl.project_name}_impl"
    for name, function in vars(module).items():
        if name.startswith("register_") and hasattr(function, marker):
            list(function() or ())


def main() -> None:
    """Read plugins from stdin, declare them, and print the heavy libraries that are loaded now."""
    work = json.load(sys.stdin)
    sys.path[:] = work["path"]
    before = set(sys.modules)
    for one in work["plugins"]:
        try:
            _declare(Found(**one))
        except Exception as error:  # discovery has reported it with its cause
            print(f"{one['name']}: {error}", file=sys.stderr)
    print(json.dumps([name for name in HEAVY if name in sys.modules and name not in before]))


if __name__ == "__main__":
    main()
