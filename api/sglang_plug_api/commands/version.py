"""``sglang-plug version``: installed versions, read without importing the libraries."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform

from sglang_plug import Plugins
from sglang_plug.plugins.hookspecs import CONTRACT_VERSION

DISTRIBUTIONS = ("sglang-plug", "torch", "transformers", "pluggy")


def versions() -> dict[str, str]:
    """Map sglang-plug, Python and the libraries that matter in a bug report to their versions."""
    installed = {name: installed_version(name) for name in DISTRIBUTIONS}
    own = {"sglang-plug": installed.pop("sglang-plug"), "contract": CONTRACT_VERSION}
    return {**own, "python": platform.python_version(), **installed}


def installed_version(distribution: str) -> str:
    """Return the version in the metadata of an installed distribution, or ``"not installed"``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


class VersionCommand:
    """The command, which prints one line for each version."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add no options."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Print the versions; always succeeds."""
        for name, version in versions().items():
            print(f"{name:<13} {version}")
        return 0


command = VersionCommand()
