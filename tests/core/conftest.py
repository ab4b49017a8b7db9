"""Temporary plugin distributions, discovered through the same entry points as installed ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

HEADER = "from __future__ import annotations\nfrom sglang_plug import *\n"

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, source, ...)``: a distribution with one plugin module, on ``sys.path`` until the test ends.

    The plugin is called like the distribution, the module likewise with underscores; ``files`` are further
    modules. The source may use ``hookimpl`` and the spec classes without importing them.
    """
    before = set(sys.modules)

    def make(name: str, source: str, *, version: str = "1.0", files: Mapping[str, str] | None = None) -> Path:
        folder, module = tmp_path / f"site-{name}", name.replace("-", "_")
        metadata = folder / f"{module}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[sglang_plug]\n{name} = {module}\n")
        (folder / f"{module}.py").write_text(HEADER + dedent(source))
        for file, text in (files or {}).items():
            (folder / f"{file}.py").write_text(dedent(text))
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield make
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]
