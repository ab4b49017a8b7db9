"""``sglang-plug plugins test``: the conformance tests of what a plugin declares, run with pytest."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import sglang_plug
from sglang_plug import PluginError, Plugins

TESTS = Path(sglang_plug.__file__).with_name("testing") / "installed" / "test_components.py"
COMPONENTS = "SGLANG_PLUG_TESTED_COMPONENTS"
"""The environment variable that names the components, one ``kind:name`` per line."""


def add_test_action(actions: Any) -> None:
    """Add the action ``test`` to the subparsers of ``sglang-plug plugins``."""
    parser = actions.add_parser(
        "test", help="run the conformance tests of what a plugin declares; status 1 on a failure"
    )
    parser.add_argument("names", metavar="NAME", nargs="+", help="a plugin, a distribution, kind:name or name")
    parser.add_argument("--junit", metavar="FILE", help="also write the results to FILE, in JUnit's format")
    parser.add_argument("--strict", action="store_true", help="a component that cannot be tested is a failure")
    parser.set_defaults(act=run_tests)


def run_tests(options: argparse.Namespace, plugins: Plugins) -> int:
    """Test the components in a process of their own; return the exit status. Raises ``PluginError``."""
    components = []
    for name in options.names:
        named = [
            component
            for component in plugins.all()
            if name in (component.plugin.name, component.plugin.distribution, component.key, component.spec.name)
        ]
        if not named:
            raise PluginError(
                f"there is nothing to test: {name!r} is not an installed plugin, distribution, kind:name or "
                "name of a component; see: sglang-plug plugins list"
            )
        components += named
    if explicit := next((component for component in components if component.plugin.explicit), None):
        raise PluginError(f"{explicit} is loaded from a file or folder; install it first: pip install -e FOLDER")
    if importlib.util.find_spec("pytest") is None:
        raise PluginError("the tests need pytest: pip install 'sglang-plug[conformance]'")
    return _run(sorted({component.key for component in components}), options.junit, strict=options.strict)


def _run(keys: list[str], junit: str | None, *, strict: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(junit).resolve() if junit else Path(folder) / "results.xml"
        arguments = ["-v", "-rs", "--no-header", "--tb=short", "--import-mode=importlib", "-p", "no:cacheprovider"]
        arguments += ["-c", os.devnull, f"--rootdir={folder}", f"--junit-xml={results}", str(TESTS)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            env={**os.environ, COMPONENTS: "\n".join(keys), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        skipped = results.read_text(encoding="utf-8").count("<skipped") if results.exists() else 0
    if strict and skipped:
        print(f"{skipped} of {len(keys)} components were not tested", file=sys.stderr)
        return 1
    return 1 if done.returncode else 0
