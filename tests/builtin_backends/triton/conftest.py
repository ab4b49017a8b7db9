"""Fixtures that make Triton's interpreter faster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def faster_interpreter() -> Iterator[None]:
    """Cache the patched language, so that interpreted kernels do not patch it with each call."""
    pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
    from .interpreter_patches import make_faster

    with pytest.MonkeyPatch.context() as patch:
        make_faster(patch)
        yield
