"""The conformance test finds faults of extensions that set the number of prompt tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import ChunkView, StepBudgetPhase, StepExtension
from sglang_plug.testing import check_step_extension


class Budget:
    """A step budget with a fixed number of prompt tokens."""

    def __init__(self, limit: Any) -> None:
        self.remaining = limit

    def tokens(self, start: int) -> int:
        return self.remaining  # type: ignore[no-any-return]

    def add(self, start: int, count: int) -> None:
        self.remaining -= count

    def add_drafts(self, start: int, count: int) -> bool:
        return count <= self.remaining


class FewWhileDecoding(StepExtension, StepBudgetPhase):
    """Limits the prompt tokens of steps with decoding sequences to a fixed number."""

    def __init__(self, limit: Any = 3, budget: type[Budget] = Budget) -> None:
        self.limit, self.budget = limit, budget
        self.limited = 0

    def prompt_budget(self, decoding: Sequence[ChunkView]) -> Budget | None:
        if not decoding:
            return None
        self.limited += 1
        return self.budget(self.limit)


def test_a_fixed_number_of_prompt_tokens_keeps_the_contract() -> None:
    extension = FewWhileDecoding()
    check_step_extension(extension)
    assert extension.limited > 10


class EveryThird(FewWhileDecoding):
    def prompt_budget(self, decoding: Sequence[ChunkView]) -> Budget | None:
        self.limited += 1
        return Budget(self.limit if self.limited % 3 == 0 or not decoding else 0)


def test_steps_without_prompts_keep_the_contract() -> None:
    check_step_extension(EveryThird())


class CountsNothing(Budget):
    def add(self, start: int, count: int) -> None: ...


class SaysNothing(Budget):
    def add_drafts(self, start: int, count: int) -> bool:
        return None  # type: ignore[return-value]


class Changes(FewWhileDecoding):
    """Changes the tokens of a sequence in ``step_computed``."""

    def step_computed(self, chunks: Sequence[ChunkView], seconds: float, *, has_prompts: bool) -> None:
        for chunk in chunks:
            if not has_prompts and chunk.sequence.generated > 1:
                chunk.sequence.tokens[-1] = 3  # type: ignore[index]


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (FewWhileDecoding(0), "left no token for prompts in 200 steps with 4 sequences that decode"),
        (FewWhileDecoding(2.5), r"tokens\(\) must return a whole number, not 2.5"),
        (FewWhileDecoding(3, CountsNothing), r"tokens\(\) is 3 after 100 calls of add\(\) that used up all tokens"),
        (FewWhileDecoding(3, SaysNothing), r"add_drafts\(\) must return True or False, not None"),
        (Changes(), "the tokens are .*, and without the extension"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension)
