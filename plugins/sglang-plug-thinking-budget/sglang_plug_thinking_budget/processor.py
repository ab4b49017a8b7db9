"""Writes the end of the reasoning once its budget is spent."""

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
from .transitions import NOTHING

UNTOLD = (
    f"{NAME}: this server does not tell the reasoning of this output from the answer; it needs --reasoning-parser "
    "and a tokenizer, and a request that does not continue its last message"
)


@dataclass(frozen=True, slots=True)
class RowBudget:
    """The budget of one request."""

    kind: int
    """Number of its reasoning in ``Tables``."""
    budget: int


class ThinkingBudget(LogitsProcessor):
    """Follows outputs by their tokens, on the device, and allows only the next token of the end where one is due."""

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

        Raises ``ValueError`` if reasoning is not separated from the answer, or if a stop token would end the output
        with it.
        """
        budget: int | None = request.fields.thinking_budget
        if budget is None:
            return None
        if request.reasoning is None:
            raise ValueError(UNTOLD)
        if not request.reasoning.ends or budget >= request.params.max_new_tokens:
            return None
        if request.constrained:
            _check_stops(request.reasoning, request.params.stop_token_ids)
        return RowBudget(self._tables.kind(request.reasoning), budget)

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Follow the tokens that ``rows`` have so far."""
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
        tables: of the processor.
        states: the rows' budgets.
        columns: ``[rows, 5]``: kind of reasoning, budget, state, tokens spent, position in the end.
    """

    def __init__(self, tables: Tables, states: Sequence[RowBudget], columns: Tensor) -> None:
        self._tables, self._states = tables, states
        self._columns = columns
        self._repeats = any(tables.repeats(state.kind) for state in states)

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Allow only the next token of the end in rows whose budget is spent."""
        if all(count < state.budget for count, state in zip(generated, self._states, strict=True)):
            return logits
        _, budget, state, spent, _ = self._columns.unbind(1)
        if self._repeats:
            logits.masked_fill_(self._tables.opens(state) & (spent >= budget)[:, None], -torch.inf)
        position = self._position()
        is_due, token = (position != NOTHING)[:, None], self._tables.written(position)[:, None]
        logit = torch.where(is_due, 0.0, logits.gather(1, token))
        return logits.masked_fill_(is_due, -torch.inf).scatter_(1, token, logit)

    def append(self, tokens: Tensor) -> None:
        """Follow the outputs by one token each."""
        kind, budget, state, spent, _ = self._columns.unbind(1)
        known = tokens.clamp(min=0)
        due = self._position()
        follows = (due != NOTHING) & (known == self._tables.written(due))
        moved = self._tables.moved(kind, state, known)
        columns = (
            kind,
            budget,
            moved,
            spent + (self._tables.inside(state) & self._tables.inside(moved)),
            torch.where(follows, self._tables.following(due), NOTHING),
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
        """Return for each row the position in the end whose token comes next, ``NOTHING`` where none is due."""
        _, budget, state, spent, position = self._columns.unbind(1)
        begins = self._tables.inside(state) & (spent >= budget)
        first = torch.where(begins, self._tables.first(state), NOTHING)
        return torch.where(position != NOTHING, position, first)
