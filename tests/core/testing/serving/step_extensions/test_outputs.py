"""The conformance test finds faults of extensions that change outputs, and lets extensions end requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import CachePhase, Finish, Output, OutputPhase, SequenceView, StepExtension
from sglang_plug.testing import check_step_extension


class EndsAfter(StepExtension, OutputPhase):
    """Ends every request after a number of tokens."""

    def __init__(self, max_tokens: int = 3) -> None:
        self.max_tokens, self.ended = max_tokens, 0

    def output(self, sequence: SequenceView, output: Output) -> Output:
        if output.finish is None and sequence.generated >= self.max_tokens:
            self.ended += 1
            return replace(output, finish=Finish("length"))
        return output


def test_an_extension_may_end_requests() -> None:
    extension = EndsAfter()
    check_step_extension(extension)
    assert extension.ended > 5


class Changes(StepExtension, OutputPhase):
    """Replaces fields of each output by the given values."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def output(self, sequence: SequenceView, output: Output) -> Any:
        return replace(output, **self.fields)


class ReturnsNothing(StepExtension, OutputPhase):
    def output(self, sequence: SequenceView, output: Output) -> Any:
        return None


class TakesLess(StepExtension, CachePhase):
    def evicted(self) -> None:  # type: ignore[override]
        """Ignore evictions, although an argument is missing, which is noticed only when a prefix is evicted."""


def test_a_method_that_cannot_be_called_as_the_contract_says_is_named() -> None:
    with pytest.raises(AssertionError, match=r"TakesLess\.evicted\(\) cannot be called with \(slots\)"):
        check_step_extension(TakesLess())


class EndsWhatItIsGiven(EndsAfter):
    def output(self, sequence: SequenceView, output: Output) -> Output:
        if output.finish is None and sequence.generated >= self.max_tokens:
            output.finish = Finish("length")
        return output


class Misspelled(StepExtension, OutputPhase):
    def outputs(self, sequence: SequenceView, output: Output) -> Output:
        return output


class OwnHelper(EndsAfter):
    def outputs(self) -> int:
        """Return the number of ended requests; the name resembles the hook ``output``."""
        return self.ended


def test_an_extension_may_have_methods_of_its_own() -> None:
    check_step_extension(OwnHelper())


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (Changes(tokens=(1,)), r"output\(\) changed tokens of an output"),
        (Changes(id="other"), r"output\(\) changed id of an output"),
        (Changes(finish=None), r"output\(\) changed the end Finish.* of a request"),
        (
            Changes(retractions="many"),
            r"output\(\) returned what other processes cannot read: Expected `int`, got `str`",
        ),
        (Changes(retractions=2**70), r"output\(\) returned what other processes cannot read"),
        (ReturnsNothing(), r"output\(\) returned NoneType, not an Output"),
        (
            EndsWhatItIsGiven(),
            r"output\(\) changed the Output that it was given; dataclasses.replace makes another one",
        ),
        (Misspelled(), r"Misspelled\.outputs\(\) is never called: OutputPhase has no such method; did you mean output"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension)
