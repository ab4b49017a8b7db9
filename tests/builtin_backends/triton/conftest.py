"""Kernels that are interpreted, faster than Triton does it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def faster_interpreter() -> Iterator[None]:
    """Interpreted kernels call functions without looking through the whole language each time."""
    pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
    from .interpreter_patches import make_faster

    with pytest.MonkeyPatch.context() as patch:
        make_faster(patch)
        yield
