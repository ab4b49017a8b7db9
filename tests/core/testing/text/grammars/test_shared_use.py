"""The conformance test of grammar backends finds outputs and constraints that share state by mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from sglang_plug import Constraint, ConstraintError, Grammar
from sglang_plug.testing import check_grammar_backend

from .test_grammar import Honest, Output, fails, with_output


class SharedScratch(Output):
    """Fills masks in a list that all outputs share."""

    scratch: list[int] = []

    def fill(self, mask: Tensor, row: int) -> None:
        self.scratch[:] = [0] * mask.shape[1]
        for token in self.allowed():
            word, bit = divmod(token, 32)
            self.scratch[word] |= 1 << bit if bit < 31 else -(1 << 31)
        time.sleep(1e-4)  # lets another thread run, as long operations on tensors do
        mask[row] = mask.new_tensor(self.scratch)


@pytest.mark.planted_bug("grammar")
def test_outputs_that_disturb_each_other_in_threads_are_named() -> None:
    fails(with_output(SharedScratch), "grammars of several outputs: called from 6 threads at once")


class ByTheSource(Honest):
    """Supports plain texts as expressions, and caches compiled constraints by their source without their kind."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.loaded: dict[str, Callable[[], Grammar]] = {}

    def read(self, constraint: Constraint) -> list[str]:
        if constraint.kind == "choice":
            return super().read(constraint)
        if constraint.source == CLASS:
            return sorted(set(CLASS[1:-1]))
        raise ConstraintError("only one expression is supported")

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        return self.loaded.setdefault(self.key(constraint), super().load(constraint, compiled))

    def key(self, constraint: Constraint) -> str:
        return constraint.source


class ByKindAndSource(ByTheSource):
    def key(self, constraint: Constraint) -> str:
        return f"{constraint.kind} {constraint.source}"


CLASS = '["only"]'
"""A source that is both a list of choices and a regular expression."""


@pytest.mark.planted_bug("grammar")
def test_constraints_of_one_source_are_told_apart() -> None:
    check_grammar_backend(ByKindAndSource, kinds=("choice", "regex"))
    with pytest.raises(AssertionError, match="ByTheSource fails '(choice|regex): "):
        check_grammar_backend(ByTheSource, kinds=("choice", "regex"))
