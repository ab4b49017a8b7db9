"""Fixtures of tests that need a CPU with AVX-512 and a compiler."""

from __future__ import annotations

import pytest

from sglang_plug_backends.avx512 import library


@pytest.fixture
def compiled() -> None:
    """Skip the test if the kernels cannot run."""
    reason = library.why_not()
    if reason:
        pytest.skip(reason)
