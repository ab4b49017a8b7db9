"""The conformance test of logits processors finds faults of processors with request fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, SamplingParams
from sglang_plug.testing import check_logits_processor


@dataclass(frozen=True, kw_only=True)
class Fields:
    strength: float = 0.0


class Unused(LogitsProcessor):
    """A logits processor that must never be called."""

    def prepare(self, request: ProcessorRequest) -> float | None:
        return None

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        raise AssertionError("no request uses this processor")


def test_cases_are_needed() -> None:
    with pytest.raises(AssertionError, match="cases are missing"):
        check_logits_processor(Unused, [], request_fields=Fields)


def test_a_case_is_named_by_what_its_request_sets() -> None:
    case = SamplingParams(processor_fields={"strength": 1.0})
    message = r"^SamplingParams\(processor_fields={'strength': 1.0}\), a prompt of 5 tokens: prepare\(\) returned None"
    with pytest.raises(AssertionError, match=message):
        check_logits_processor(Unused, [case], request_fields=Fields)


class LastToken(LogitsProcessor):
    """Forbids the last token, and reads it from the device after some steps."""

    needs_tokens = True

    def prepare(self, request: ProcessorRequest) -> float | None:
        return request.params.min_p or None

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        return LastTokenBatch(torch.tensor([row.tokens[-1] for row in rows]).to(self.device, non_blocking=True))


class LastTokenBatch(LogitsBatch):
    def __init__(self, last: Tensor) -> None:
        self.last, self.steps = last, 0

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        return logits.scatter(1, self.last[:, None], -torch.inf)

    def append(self, tokens: Tensor) -> None:
        self.steps += 1
        if self.steps > 4:
            tokens.tolist()
        self.last = torch.where(tokens >= 0, tokens, self.last)


@pytest.mark.planted_bug("logits-processor")
def test_a_processor_that_waits_after_some_steps_is_named() -> None:
    with pytest.raises(AssertionError, match="it waits for the device"):
        check_logits_processor(LastToken, [SamplingParams(min_p=0.1)])
