"""Prints pip constraints that select the oldest allowed version of every dependency, for ``make test-oldest``.

torch and triton are left out: their oldest versions exist only as builds for CUDA devices, of several gigabytes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
LEFT_OUT = {"torch", "triton", "flashinfer-python"}
EXTRAS = ("vision", "outlines", "llguidance", "plot")
"""Extras that the tests install and whose packages the server uses."""


def oldest_versions(pyproject: Path = PYPROJECT) -> Iterator[str]:
    """Return ``name==version`` for the lower bound of each dependency of the server and of ``EXTRAS``.

    Raises ``ValueError`` for a dependency without a lower or an upper bound.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project.get("optional-dependencies", {})
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, ()))]
    for line in lines:
        requirement = Requirement(line)
        bounds = {specifier.operator: specifier.version for specifier in requirement.specifier}
        if ">=" not in bounds or "<" not in bounds:
            raise ValueError(f"{line!r} needs a lower bound (>=) and an upper bound (<)")
        if requirement.name not in LEFT_OUT:
            yield f"{requirement.name}=={bounds['>=']}"


if __name__ == "__main__":
    print("\n".join(oldest_versions()))
