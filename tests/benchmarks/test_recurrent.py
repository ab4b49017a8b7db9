"""The benchmark of recurrent layers runs two engines that differ in their kernels."""

from __future__ import annotations

from benchmarks.recurrent import DEFINED, RECURRENT, TINY, defined, measure, show
from sglang_plug import Kernels


def test_each_crowd_is_measured() -> None:
    found = measure(TINY, [1, 2], prompt=12, output=8, rounds=1)
    assert [one.requests for one in found] == [1, 2]
    assert all(min(one.prompts_defined, one.prompts_own, one.step_defined, one.step_own) > 0 for one in found)
    assert len(show(found).splitlines()) >= 4


def test_the_definitions_are_those() -> None:
    made, plain = defined(), Kernels()
    assert made.name == DEFINED
    assert all(getattr(made, name) is getattr(plain, name) for name in RECURRENT)
    assert made.pack_linear is not plain.pack_linear, "all else is the kernel set's"
