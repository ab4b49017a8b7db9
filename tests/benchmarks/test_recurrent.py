"""The benchmark of recurrent layers runs two engines that differ in their kernels."""

from __future__ import annotations

import pytest

from benchmarks.recurrent import DEFINED, RECURRENT, TINY, defined, measure, show
from sglang_plug import Kernels
from sglang_plug_backends.avx512 import library


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip the tests where the kernels that are compared with their definitions cannot run."""
    if reason := library.why_not():
        pytest.skip(reason)


def test_each_crowd_is_measured() -> None:
    result = measure(TINY, [1, 2], prompt=12, output=8, rounds=1)
    assert [item.requests for item in result] == [1, 2]
    assert all(min(item.prompts_defined, item.prompts_own, item.step_defined, item.step_own) > 0 for item in result)
    assert len(show(result).splitlines()) >= 4


def test_the_definitions_are_those() -> None:
    kernels, plain = defined(), Kernels()
    assert kernels.name == DEFINED
    assert all(getattr(kernels, name) is getattr(plain, name) for name in RECURRENT)
    assert kernels.pack_linear is not plain.pack_linear, "all else is the kernel set's"
