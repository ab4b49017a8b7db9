"""The conformance test of step extensions passes for the built-in ones and names what others break."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_plug import AdmissionPhase, OutputPhase, PlanningPhase, SequenceView, StepExtension, StepPlan
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.ngram.drafter import NGramDrafter
from sglang_plug_backends.ngram.settings import NGramSettings
from sglang_plug_backends.speculation.extension import Speculation


def test_speculation_keeps_the_contract() -> None:
    drafter = NGramDrafter(NGramSettings())
    check_step_extension(Speculation(drafter, name="ngram", most=4, step_tokens=8, vocabulary=16))


def test_an_extension_without_any_point_keeps_the_contract() -> None:
    check_step_extension(StepExtension())


class WrongBudget(StepExtension, PlanningPhase):
    """Adds drafts to a step that has no room for them."""

    def plan(self, step: StepPlan) -> None:
        for index, chunk in enumerate(step.chunks):
            if chunk.complete and chunk.sequence.generated:
                step.add_drafts(index, (0,) * 20)


class Editor(StepExtension, OutputPhase, PlanningPhase):
    """Changes the tokens of sequences."""

    def plan(self, step: StepPlan) -> None:
        for chunk in step.chunks:
            tokens = chunk.sequence.tokens
            assert isinstance(tokens, list)
            if chunk.sequence.generated > 1:
                tokens[-1] = 3


class Unreachable(StepExtension):
    """Has a method of a phase that it does not inherit from."""

    def plan(self, step: StepPlan) -> None: ...


class Fails(StepExtension, AdmissionPhase):
    """Fails at the end of each request."""

    def finished(self, sequence: SequenceView) -> None:
        raise KeyError("finished")


@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (WrongBudget(), "its budget is 12"),
        (Editor(), "without the extension"),
        (Unreachable(), "Unreachable has plan and is not a PlanningPhase"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension)


def test_an_error_of_the_extension_is_raised() -> None:
    with pytest.raises(KeyError, match="finished"):
        check_step_extension(Fails())


def test_state_is_kept_by_sequence() -> None:
    kept: list[int] = []

    class Counting(StepExtension, AdmissionPhase, OutputPhase):
        def admit(self, sequence: SequenceView) -> None:
            sequence.extras[self] = len(kept)
            kept.append(0)

        def finished(self, sequence: SequenceView) -> None:
            kept[sequence.extras[self]] += 1

    check_step_extension(Counting())
    assert kept == [1] * len(kept) and isinstance(kept, Sequence)
