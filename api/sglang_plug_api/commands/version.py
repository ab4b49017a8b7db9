"""``sglang-plug version``: what is installed, told without importing it."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

from sglang_plug import Plugins

DISTRIBUTIONS = ("sglang-plug", "torch", "transformers", "pluggy")


def versions() -> dict[str, str]:
    """Name -> version of sglang-plug, Python and the libraries that matter in a report."""
    found = {name: installed_version(name) for name in DISTRIBUTIONS}
    return {"sglang-plug": found.pop("sglang-plug"), "python": platform.python_version(), **found}


def installed_version(distribution: str) -> str:
    """The version in the metadata of an installed distribution, or ``"not installed"``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class VersionCommand:
    """Prints one line for each version."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """No options."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print; always succeeds."""
        for name, version in versions().items():
            print(f"{name:<13} {version}")
        return 0


command = VersionCommand()
