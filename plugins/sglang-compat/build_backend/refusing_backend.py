"""The build backend of setuptools, which refuses to build where SGLang itself is installed."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def build_wheel(*arguments: Any, **options: Any) -> str:
    """Build a wheel. Raises ``RuntimeError`` if SGLang is installed for this interpreter."""
    _refuse_next_to_sglang()
    return str(build_meta.build_wheel(*arguments, **options))


def build_editable(*arguments: Any, **options: Any) -> str:
    """Build an editable wheel. Raises ``RuntimeError`` if SGLang is installed for this interpreter."""
    _refuse_next_to_sglang()
    return str(build_meta.build_editable(*arguments, **options))


def _refuse_next_to_sglang() -> None:
    for folder in {sysconfig.get_path(name) for name in ("purelib", "platlib")}:
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            if entry.startswith("sglang-") and entry.endswith((".dist-info", ".egg-info")):
                raise RuntimeError(
                    f"sglang-compat provides the module 'sglang', but SGLang itself is installed ({folder}/{entry}): "
                    "uninstall it first (pip uninstall sglang), or use another environment"
                )
