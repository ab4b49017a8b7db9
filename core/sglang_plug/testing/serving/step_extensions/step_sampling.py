"""The sampling of steps in the conformance test of step extensions: a function is the model, and rules are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from sglang_plug.contracts.extension.sampling_phases import AllowedTokens, TokenDecision
from sglang_plug.contracts.request import Finish, RequestError
from sglang_plug.contracts.text.vocabulary import MASK_BITS
from sglang_plug.engine.extensions.step_points import SamplingPoints
from sglang_plug.engine.sampling.masks import begin_masks
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence as EngineSequence

VOCABULARY = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The tokens that rows of a step may take."""

    tokens: Mapping[int, list[int]] = field(default_factory=dict)
    errors: Mapping[int, RequestError] = field(default_factory=dict)


class CheckedSampling:
    """Samples the tokens of steps, and checks what extensions allow and decide.

    Args:
        points: the extension points of sampling.
    """

    def __init__(self, points: SamplingPoints) -> None:
        self._points = points
        self._asynchronous = False
        self.limited = set[str]()
        """Ids of requests whose tokens depend on more than the function that replaces a model."""

    def results(self, chunks: Sequence[ScheduledChunk]) -> list[StepResult]:
        """Sample after each complete chunk, and after each of its drafts."""
        rows = [(chunk, depth) for chunk in chunks if chunk.complete for depth in range(1 + len(chunk.drafts))]
        sequences = [chunk.sequence for chunk, _ in rows]
        limits = self._limits(sequences)
        tokens = [
            -1 if row in limits.errors else _sampled(chunk, depth, limits.tokens.get(row))
            for row, (chunk, depth) in enumerate(rows)
        ]
        decisions = self._decisions(sequences, tokens)
        results, row = list[StepResult](), 0
        for chunk in chunks:
            if chunk.complete:
                width = 1 + len(chunk.drafts)
                results.append(_result(chunk, tokens[row : row + width], limits.errors.get(row), decisions.get(row)))
                row += width
            else:
                results.append(StepResult())
        return results

    def _limits(self, sequences: Sequence[EngineSequence]) -> Limits:
        """Return what the extensions allow; each second step is one of an asynchronous device."""
        self._asynchronous = not self._asynchronous
        pending = begin_masks(self._points.allowed, sequences, asynchronous=self._asynchronous)
        if pending is None:
            return Limits()
        assert hasattr(pending, "result"), f"allowed() must return a PendingMask or None, not {type(pending).__name__}"
        allowed = pending.result()
        assert isinstance(allowed, AllowedTokens), (
            f"result() of what allowed() returned must be AllowedTokens, not {type(allowed).__name__}"
        )
        _check_mask(allowed, len(sequences))
        self.limited |= {sequences[row].request.id for row in allowed.rows}
        bits = (allowed.mask[:, :, None] >> torch.arange(MASK_BITS, dtype=torch.int32)) & 1
        tokens: dict[int, list[int]] = {}
        for row, row_bits in zip(allowed.rows, bits.flatten(1)[:, :VOCABULARY], strict=True):
            tokens[row] = row_bits.nonzero()[:, 0].tolist()
            assert tokens[row] or row in allowed.errors, (
                f"request {sequences[row].request.id}: allowed() allows no token, and gives no error"
            )
        return Limits(tokens, allowed.errors)

    def _decisions(self, sequences: Sequence[EngineSequence], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        decisions = self._points.decisions(sequences, tokens) if self._points.sampled else {}
        for row, decision in decisions.items():
            assert 0 <= row < len(sequences), f"sampled() decides about row {row}, and there are {len(sequences)}"
            sequence = sequences[row]
            name = f"request {sequence.request.id}: sampled()"
            assert sequence.constrained, f"{name} decides about an output that the extension does not constrain"
            assert tokens[row] >= 0, f"{name} decides about a row without a token"
            assert not (decision.rejected and decision.forced), f"{name} forces tokens after one that it rejects"
            assert sequence.sampling.rejections < VOCABULARY, (
                f"{name} rejects more tokens at one position than there are"
            )
            check_tokens(decision.forced, f"{name} forces")
            reports = sequence.request.logprobs is not None
            assert not (reports and decision.forced and decision.finish), (
                f"{name} ends the output with forced tokens, whose log-probabilities are not known then"
            )
            room = sequence.limit - len(sequence.tokens) - 1 - reports
            assert len(decision.forced) <= max(0, room), (
                f"{name} forces {len(decision.forced)} tokens, and there is room for {max(0, room)}"
            )
        return decisions


def check_tokens(tokens: Sequence[int], name: str) -> None:
    """Check that ``tokens`` are in the vocabulary; ``name`` says who gives them."""
    outside = [token for token in tokens if not 0 <= token < VOCABULARY]
    assert not outside, f"{name} tokens that are not in the vocabulary: {outside}"


def next_token(tokens: Sequence[int]) -> int:
    """Return the token that the function that replaces a model samples: repetitive, so that drafts are often right."""
    return (tokens[-1] * 5 + len(tokens) // 9) % VOCABULARY


def _check_mask(allowed: AllowedTokens, count: int) -> None:
    rows, mask = allowed.rows, allowed.mask
    assert rows == sorted(set(rows)) and all(0 <= row < count for row in rows), (
        f"the rows of a mask must ascend, and be some of {count}: {rows}"
    )
    assert mask.dtype == torch.int32 and mask.device.type == "cpu" and mask.ndim == 2 and len(mask) == len(rows), (
        f"a mask must be int32 [{len(rows)}, words] on the host, not {mask.dtype} {list(mask.shape)} on {mask.device}"
    )
    assert allowed.errors.keys() <= set(rows), f"the errors of a mask belong to its rows {rows}"


def _sampled(chunk: ScheduledChunk, depth: int, allowed: Sequence[int] | None) -> int:
    """Sample after ``depth`` drafts: the likeliest allowed token, or the next one for each rejection."""
    likeliest = next_token([*chunk.sequence.tokens, *chunk.drafts[:depth]])
    order = [(likeliest + distance) % VOCABULARY for distance in range(VOCABULARY)]
    candidates = order if allowed is None else [token for token in order if token in allowed]
    return candidates[chunk.sequence.sampling.rejections % len(candidates)]


def _result(
    chunk: ScheduledChunk, tokens: Sequence[int], refusal: RequestError | None, decision: TokenDecision | None
) -> StepResult:
    """Return the result of a complete chunk; ``tokens`` were sampled after it, and after each of its drafts."""
    decision = TokenDecision() if decision is None else decision
    error = decision.error if refusal is None else refusal
    if error is not None:
        return StepResult(error=str(error), status=error.status)
    if decision.rejected:
        return StepResult(rejected=True, finish=decision.finish)
    accepted: list[tuple[int, None]] = []
    for depth, draft in enumerate(chunk.drafts):
        if draft != tokens[depth]:
            break
        accepted.append((tokens[depth + 1], None))
    return StepResult(tokens[0], forced=decision.forced, finish=decision.finish, accepted_tokens=tuple(accepted))


def check_finish(finish: object, name: str) -> None:
    """Check the end of a request that was never computed."""
    assert finish is None or isinstance(finish, Finish | RequestError), (
        f"{name} must finish a request with a Finish or a RequestError, not with {type(finish).__name__}"
    )
