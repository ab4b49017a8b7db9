"""The conformance test finds faults of extensions that hold requests, and tests those that depend on parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    HoldPhase,
    PendingMask,
    QueuePhase,
    QueueView,
    ReadySequence,
    Request,
    RequestError,
    SamplingParams,
    SamplingPhase,
    SequenceView,
    StepExtension,
)
from sglang_plug.testing import check_step_extension

TOO_LONG = Request(id="100", tokens=(1,) * 31)


class HoldsBriefly(StepExtension, AdmissionPhase, HoldPhase):
    """Holds each request until the next call of ``ready``, and refuses long prompts."""

    limit = 30

    def __init__(self) -> None:
        self.held: list[SequenceView] = []

    def hold(self, sequence: SequenceView) -> bool:
        if sequence.prompt_len > self.limit:
            raise RequestError("the prompt is too long", 429)
        self.held.append(sequence)
        return True

    def ready(self) -> Sequence[ReadySequence]:
        held, self.held = self.held, []
        return [ReadySequence(sequence) for sequence in held]

    def finished(self, sequence: SequenceView) -> None:
        self.held = [other for other in self.held if other is not sequence]


class RefusesInQueue(StepExtension, QueuePhase):
    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        if sequence.prompt_len > 30:
            raise RequestError("the prompt is too long")


@pytest.mark.parametrize("extension", [HoldsBriefly(), RefusesInQueue()])
def test_requests_may_be_refused_after_they_were_admitted(extension: StepExtension) -> None:
    check_step_extension(extension, refused=[TOO_LONG])


class NeverHolds(HoldsBriefly):
    def hold(self, sequence: SequenceView) -> bool:
        return False


def test_a_holding_extension_that_holds_nothing_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"hold\(\) held none of the requests, so ready\(\) was not tested"):
        check_step_extension(NeverHolds())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_step_extension(HoldsBriefly())


class HoldsMarked(HoldsBriefly):
    """Holds the requests whose parameters have a field of a logits processor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def hold(self, sequence: SequenceView) -> bool:
        if not sequence.request.params.processor_fields.get("wait"):
            return False
        self.count += 1
        return super().hold(sequence)


def test_requests_have_the_given_parameters_in_turn() -> None:
    extension = HoldsMarked()
    params = [SamplingParams(processor_fields={"wait": True}, max_new_tokens=9, stop_token_ids=(1,)), SamplingParams()]
    check_step_extension(extension, fields={"params": params})
    assert extension.count >= 12


class RefusesNothing(HoldsBriefly):
    limit = 1000


class ReadyIsNone(HoldsBriefly):
    def ready(self) -> Any:
        super().ready()


class ReadyIsSequences(HoldsBriefly):
    def ready(self) -> Any:
        return [ready.sequence for ready in super().ready()]


class MaskIsAList(StepExtension, SamplingPhase):
    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> Any:
        return [1, 2]


class MaskHasNoTokens(MaskIsAList):
    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> Any:
        class Empty(PendingMask):
            def result(self) -> Any:
                return None

        return Empty()


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (RefusesNothing(), "request 100 must be refused with RequestError"),
        (ReadyIsNone(), r"ready\(\) must return a list, not NoneType"),
        (ReadyIsSequences(), r"ready\(\) must return a list of ReadySequence, not of Sequence"),
        (MaskIsAList(), r"allowed\(\) must return a PendingMask or None, not list"),
        (MaskHasNoTokens(), r"result\(\) of what allowed\(\) returned must be AllowedTokens, not NoneType"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension, refused=[TOO_LONG])
