"""Write the description of the present contract, ``api/sglang_plug_api/contract/versions/MAJOR.MINOR.json``.

The source code is read, not imported. ``--check`` writes nothing and fails if the file is not what would be written.
``--release VERSION`` notes that this version of sglang-plug is released with it, after which it must not change.
``--tree FOLDER --out FILE`` describes another checkout, for ``sglang-plug plugins diff``.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from pathlib import Path

from contract_source import SourceTree

from sglang_plug_api.contract.surface import VERSIONS, Surface, read_surface, surface_text

ROOT = Path(__file__).parents[1]
PUBLIC = ("sglang_plug", "sglang_plug.layers", "sglang_plug.testing", "sglang_plug_api.plugin")


def describe(root: Path) -> Surface:
    """Describe the contract of a checkout."""
    tree = SourceTree(root, PUBLIC)
    hookspecs = tree.module("sglang_plug.plugins.hookspecs")
    major, minor = (_number(hookspecs, name) for name in ("API_VERSION", "API_MINOR_VERSION"))
    routes = _number(tree.module("sglang_plug_api.plugin"), "ROUTE_API_VERSION")
    return Surface(contract=f"{major}.{minor}", routes=routes, items=tree.items())


def _number(module: ast.Module, name: str) -> int:
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return int(ast.literal_eval(node.value))
    return 0


def main() -> int:
    """Write or check the file; return the exit status of the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the file is out of date")
    parser.add_argument("--release", metavar="VERSION", help="the version of sglang-plug that is released with it")
    parser.add_argument("--tree", metavar="FOLDER", type=Path, default=ROOT, help="the checkout to describe")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the file to write, instead of the package's own")
    options = parser.parse_args()
    surface = describe(options.tree)
    file = options.out or VERSIONS / f"{surface.contract}.json"
    recorded = read_surface(str(file)) if file.is_file() else None
    released = options.release or (recorded.released if recorded else None)
    surface = dataclasses.replace(surface, released=released)
    if options.check:
        if surface == recorded:
            return 0
        print(f"{file.name} is out of date; run: python docs/generate_contract_version.py", file=sys.stderr)
        return 1
    if recorded is not None and recorded.released and surface != recorded:
        print(
            f"contract {surface.contract} was released with sglang-plug {recorded.released} and must not change: raise "
            "API_MINOR_VERSION in hookspecs.py, or API_VERSION for a change that breaks plugins",
            file=sys.stderr,
        )
        return 1
    file.write_text(surface_text(surface), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
