"""Import directions between the packages, computed from the source tree and from ``pyproject.toml``."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.policy.source_tree import Source

PACKAGES = {
    "core": ("sglang_plug",),
    "builtin_models": ("sglang_plug", "sglang_plug_models"),
    "builtin_backends": ("sglang_plug", "sglang_plug_backends"),
    "api/sglang_plug_api": ("sglang_plug", "sglang_plug_api"),
    "api/sglang_plug_lang": ("sglang_plug_lang",),
}
"""Our own packages that the modules under a folder may import."""
BARRED = {
    "core/sglang_plug/plugins": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "core/sglang_plug/contracts": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "core/sglang_plug/layers": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "core/sglang_plug/ops": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "core/sglang_plug/system": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "core/sglang_plug/engine": ("sglang_plug.clients", "sglang_plug.testing"),
    "core/sglang_plug/clients": ("sglang_plug.testing",),
    "builtin_models": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "builtin_backends": ("sglang_plug.clients", "sglang_plug.engine", "sglang_plug.testing"),
    "api": ("sglang_plug.testing",),
}
"""Parts of the core that the modules under a folder must not import."""
LIBRARIES = {
    "core": ("torch", "pluggy"),
    "core/sglang_plug/engine": ("msgspec", "zmq"),
    "core/sglang_plug/clients": ("msgspec", "zmq"),
    "core/sglang_plug/plugins/request_fields.py": ("msgspec",),
    "core/sglang_plug/plugins/settings.py": ("msgspec",),
    "core/sglang_plug/testing": ("transformers",),
    "api/sglang_plug_lang": ("httpx",),
}
"""Third-party libraries that the core and the frontend language may import, and where."""
OPTIONAL = ("gpu", "vision", "outlines", "llguidance", "plot")
"""Extras with libraries that a built-in plugin may import; the others are for tests and tools."""
IMPORTED_AS = {"flashinfer": "flashinfer-python"}
"""Package names of libraries that may not be installed where the tests run."""


def forbidden_imports(sources: Iterable[Source], root: Path) -> list[str]:
    """Return what the modules of the installed packages import against the rules, one sentence for each import."""
    sources = list(sources)
    declared = declared_libraries(root)
    owned = [
        f"{source.path} imports {name}"
        for source in sources
        for name in sorted(source.imports())
        if not _may_import(source.path.as_posix(), name, declared)
    ]
    return owned + _shared_libraries(sources) + _optional_libraries(sources, root)


def _may_import(path: str, name: str, declared: Mapping[str, bool]) -> bool:
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return True
    if package.startswith("sglang_plug"):
        return package in _listed(PACKAGES, path) and not any(
            f"{name}.".startswith(f"{barred}.") for barred in _listed(BARRED, path)
        )
    if path.startswith(("core/", "api/sglang_plug_lang/")):
        return package in _listed(LIBRARIES, path)
    return package in declared


def _listed(table: Mapping[str, Sequence[str]], path: str) -> list[str]:
    return [entry for folder, entries in table.items() if f"{path}/".startswith(f"{folder}/") for entry in entries]


def _shared_libraries(sources: Sequence[Source]) -> list[str]:
    """Return the imports of the other side's libraries: the API process computes nothing, the engine knows no HTTP."""
    serving = {name for source in sources if source.package == "api" for name in libraries(source)}
    computing = {name for source in sources if source.package == "core" for name in libraries(source)}
    return [
        f"{source.path} imports {name}, which is for {'the engine' if source.package == 'api' else 'the API'}"
        for source in sources
        if source.package != "core"
        for name in sorted(libraries(source) & (computing if source.package == "api" else serving - computing))
    ]


def _optional_libraries(sources: Sequence[Source], root: Path) -> list[str]:
    """An optional library belongs to one plugin of ``builtin_backends``, which may be missing."""
    users: dict[str, set[str]] = {}
    optional = {name for name, is_optional in declared_libraries(root).items() if is_optional}
    for source in sources:
        if source.package == "builtin_backends":
            for name in libraries(source) & optional:
                users.setdefault(name, set()).add(source.path.parts[2])
    return [f"{name} is imported by {', '.join(sorted(who))}" for name, who in users.items() if len(who) > 1]


def libraries(source: Source) -> set[str]:
    """Return the third-party packages that a module imports."""
    names = {name.partition(".")[0] for name in source.imports()}
    return {name for name in names if name not in sys.stdlib_module_names and not name.startswith("sglang_plug")}


def declared_libraries(root: Path) -> dict[str, bool]:
    """Return the packages of the declared dependencies; true for those of an extra."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    required = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    optional = {canonicalize_name(Requirement(line).name) for name in OPTIONAL for line in extras.get(name, ())}
    packages = {**packages_distributions(), **{name: [owner] for name, owner in IMPORTED_AS.items()}}
    return {
        package: distribution in optional - required
        for package, distributions in packages.items()
        for distribution in map(canonicalize_name, distributions)
        if distribution in required | optional
    }
