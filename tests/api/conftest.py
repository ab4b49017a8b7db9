"""One-file plugins for the tests of the command line."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_plug import PluginOptions, Plugins

HEADER = "from __future__ import annotations\nfrom sglang_plug import hookimpl\nfrom sglang_plug.specs import *\n"

SourceFile = Callable[[str, str], str]
Discover = Callable[..., Plugins]


@pytest.fixture
def plugin_file(tmp_path: Path) -> SourceFile:
    """``plugin_file(name, source)``: the path of a one-file plugin."""

    def write(name: str, source: str) -> str:
        file = tmp_path / f"{name}.py"
        file.write_text(HEADER + textwrap.dedent(source))
        return str(file)

    return write


@pytest.fixture
def discover() -> Discover:
    """``discover(*files, **options)``: the built-in plugins and those in ``files``."""
    return lambda *files, **options: Plugins.discover(PluginOptions(files=files, **options))
