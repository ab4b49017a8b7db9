"""Forces the end marker of the reasoning once the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import (
    LogitsBatch,
    LogitsProcessor,
    LogitsRow,
    ProcessorRequest,
    ReasoningBlock,
    Vocabulary,
    send,
    upload,
)

from .fields import NAME
from .symbols import TokenSymbols
from .tables import Tables
from .transitions import NO_POSITION

REASONING_NOT_SEPARATED = (
    f"{NAME}: the server cannot separate the reasoning of this output from the answer: start it with "
    "--reasoning-parser and a tokenizer, and do not use continue_final_message"
)


@dataclass(frozen=True, slots=True)
class RowBudget:
    """The budget of one request."""

    kind: int
    """Number of its kind of reasoning in ``Tables``."""
    budget: int


class ThinkingBudget(LogitsProcessor):
    """Tracks outputs on the device and forces the end marker, token by token, where a budget is spent."""

    needs_tokens = True
    needs_vocabulary = True

    def __init__(
        self, settings: object, vocab_size: int, device: torch.device, vocabulary: Vocabulary | None = None
    ) -> None:
        super().__init__(settings, vocab_size, device, vocabulary)
        pieces = [b""] * vocab_size if vocabulary is None else vocabulary.pieces
        self._tables = Tables(TokenSymbols(pieces), device)

    def prepare(self, request: ProcessorRequest) -> RowBudget | None:
        """Return the request's budget; ``None`` if it has none, does not reason, or cannot generate more tokens.

        Raises ``ValueError`` if reasoning is not separated from the answer, or if the end marker of a constrained
        output contains a stop token.
        """
        budget: int | None = request.fields.thinking_budget
        if budget is None:
            return None
        if request.reasoning is None:
            raise ValueError(REASONING_NOT_SEPARATED)
        if not request.reasoning.ends or budget >= request.params.max_new_tokens:
            return None
        if request.constrained:
            _check_stops(request.reasoning, request.params.stop_token_ids)
        return RowBudget(self._tables.kind(request.reasoning), budget)

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return the progress of ``rows`` after the tokens that they have so far."""
        states: list[RowBudget] = [row.state for row in rows]
        columns: list[list[int]] = []
        for row, own in zip(rows, states, strict=True):
            progress = self._tables.follow(own.kind, row.tokens[row.prompt_len :], own.budget)
            columns.append([own.kind, own.budget, progress.state, progress.spent, progress.position])
        return BudgetBatch(self._tables, states, send(torch.tensor(columns, dtype=torch.int64), self.device))


def _check_stops(reasoning: ReasoningBlock, stops: Sequence[int]) -> None:
    if common := set(stops).intersection(reasoning.ends[0]):
        raise ValueError(f"{NAME}: the reasoning of a constrained output ends with the stop token {min(common)}")


class BudgetBatch(LogitsBatch):
    """Rows and the progress of their outputs.

    Args:
        tables: the processor's tables.
        states: the rows' budgets.
        columns: ``[rows, 5]``: kind of reasoning, budget, state, tokens spent, position in the end marker.
    """

    def __init__(self, tables: Tables, states: Sequence[RowBudget], columns: Tensor) -> None:
        self._tables, self._states = tables, states
        self._columns = columns
        self._repeats = any(tables.repeats(state.kind) for state in states)

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Allow only the next token of the end marker in rows whose budget is spent."""
        if all(count < state.budget for count, state in zip(generated, self._states, strict=True)):
            return logits
        _, budget, state, spent, _ = self._columns.unbind(1)
        if self._repeats:
            logits.masked_fill_(self._tables.opens(state) & (spent >= budget)[:, None], -torch.inf)
        position = self._position()
        is_due, token = (position != NO_POSITION)[:, None], self._tables.token_at(position)[:, None]
        logit = torch.where(is_due, 0.0, logits.gather(1, token))
        return logits.masked_fill_(is_due, -torch.inf).scatter_(1, token, logit)

    def append(self, tokens: Tensor) -> None:
        """Update the progress of the outputs by one token each."""
        kind, budget, state, spent, _ = self._columns.unbind(1)
        known = tokens.clamp(min=0)
        due = self._position()
        is_next = (due != NO_POSITION) & (known == self._tables.token_at(due))
        moved = self._tables.moved(kind, state, known)
        columns = (
            kind,
            budget,
            moved,
            spent + (self._tables.inside(state) & self._tables.inside(moved)),
            torch.where(is_next, self._tables.next_position(due), NO_POSITION),
        )
        self._columns = torch.where((tokens >= 0)[:, None], torch.stack(columns, 1), self._columns)

    def regroup(self, rows: Sequence[int], joining: LogitsBatch | None) -> LogitsBatch:
        """Return ``rows``, then those of ``joining``."""
        columns = self._columns.index_select(0, upload(rows, torch.int64, self._columns.device))
        states = [self._states[row] for row in rows]
        if isinstance(joining, BudgetBatch):
            columns, states = torch.cat((columns, joining._columns)), [*states, *joining._states]
        return BudgetBatch(self._tables, states, columns)

    def _position(self) -> Tensor:
        """Return for each row the position in the end marker whose token is due; ``NO_POSITION`` where none is due."""
        _, budget, state, spent, position = self._columns.unbind(1)
        begins = self._tables.inside(state) & (spent >= budget)
        first = torch.where(begins, self._tables.first(state), NO_POSITION)
        return torch.where(position != NO_POSITION, position, first)
