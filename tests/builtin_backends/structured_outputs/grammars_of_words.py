"""Grammars of a few words, and an extension whose sequences follow them."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Ordered
from typing import Any

import torch
from torch import Tensor

from sglang_plug import Grammar, PendingMask, Request, SamplingParams, TokenDecision
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.sampling import mask_bias
from sglang_plug_backends.structured_outputs.batch_grammars import Grammars, too_slow
from sglang_plug_backends.structured_outputs.constraints import Constraints
from sglang_plug_backends.structured_outputs.extension import StructuredOutputs
from sglang_plug_backends.structured_outputs.grammar_state import GrammarState

VOCABULARY = 70
EOS = 69
STATE = "state"


class Words(Grammar):
    """A grammar that accepts one of several token sequences."""

    def __init__(self, *words: Ordered[int]) -> None:
        self.words, self.so_far = [tuple(word) for word in words], ()
        self.gate: threading.Event | None = None

    def _next(self) -> set[int]:
        at = len(self.so_far)
        return {word[at] for word in self.words if word[:at] == self.so_far and len(word) > at}

    def fill(self, mask: Tensor, row: int) -> None:
        if self.gate is not None:
            self.gate.wait()
        mask[row] = 0
        for token in self._next():
            mask[row, token // 32] |= torch.tensor(1 << token % 32).to(torch.int32)

    def accept(self, token: int) -> bool:
        if self.gate is not None:
            self.gate.wait()
        if token not in self._next():
            return False
        self.so_far = (*self.so_far, token)
        return True

    def rollback(self, count: int) -> None:
        self.so_far = self.so_far[:-count]

    @property
    def may_end(self) -> bool:
        return self.so_far in self.words

    @property
    def ended(self) -> bool:
        return self.may_end and not self._next()


class NoCompiler:
    """A compiler that must never be called."""


def extension(**options: Any) -> StructuredOutputs:
    """Return an extension with ``Grammars`` of these options, which compiles nothing."""
    constraints = Constraints(NoCompiler())  # type: ignore[arg-type]
    return StructuredOutputs(constraints, Grammars(VOCABULARY, **options), None, vocab_size=VOCABULARY)


def sequence(grammar: Grammar | None, **params: Any) -> Sequence:
    params = {"temperature": 0.0, "stop_token_ids": (EOS,), **params}
    request = Request(id="a", tokens=(1, 2), params=SamplingParams(**params))
    result = Sequence.of(request, 100, constrained=grammar is not None)
    if grammar is not None:
        result.extras[STATE] = GrammarState(grammar)
    return result


def state(sequence: Sequence) -> GrammarState:
    grammar_state: GrammarState = sequence.extras[STATE]
    return grammar_state


def start(extension: StructuredOutputs, sequences: list[Sequence], *, asynchronous: bool = False) -> PendingMask | None:
    """Begin to fill masks, after the extension was given the grammars of ``sequences``."""
    for sequence in sequences:
        if STATE in sequence.extras:
            extension.follow(sequence, sequence.extras[STATE])
    return extension.allowed(sequences, asynchronous=asynchronous)


def follow(extension: StructuredOutputs, sequences: list[Sequence], tokens: list[int]) -> dict[int, TokenDecision]:
    """Give the sampled ``tokens`` to the grammars of ``sequences``; return the decisions by row."""
    for sequence in sequences:
        if STATE in sequence.extras:
            extension.follow(sequence, sequence.extras[STATE])
    return dict(extension.sampled(sequences, tokens))


def opened(sequences: list[Sequence], **options: Any) -> list[TokenDecision]:
    """Open the grammars of new outputs; return their decisions, with the tokens that they force."""
    grammars = Grammars(VOCABULARY, **options)
    calls = [grammars.open(sequence, state(sequence)) for sequence in sequences]
    return [decision or too_slow() for call in calls for decision in call.results()]


def allowed_tokens(extension: StructuredOutputs, sequences: list[Sequence]) -> list[set[int] | str]:
    filling = start(extension, sequences)
    assert filling is not None
    filled = filling.result()
    bits = mask_bias(filled.mask, VOCABULARY) == 0
    sets = [set(row.nonzero()[:, 0].tolist()) for row in bits]
    errors = {row: str(error) for row, error in filled.errors.items()}
    return [errors.get(row, tokens) for row, tokens in zip(filled.rows, sets, strict=True)]
