"""The logits processors of a batch: the rows that each of them changes, and its state for their tokens.

A processor gets only the logits of its own rows, so it cannot change other rows. The engine tracks how many tokens of
each row a batch knows. If there are more by now (tokens were forced) they are appended; if there are fewer (the
sampled token was rejected) the batch is made anew from the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.serving.logits_processor import LogitsBatch, LogitsRow
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.host_device_copy import upload
from sglang_plug.system.library_panics import is_error

from .processors import LoadedProcessor, ProcessorUse

SERVER_ERROR = 500


class RowSelection:
    """Selects rows of a batch, on the host and on the device.

    Args:
        indices: indices of the rows, in the order of the selection.
        batch: rows of the whole batch.
        device: the device of the tensors.
    """

    def __init__(self, indices: Ordered[int], batch: int, device: torch.device) -> None:
        self.indices = tuple(indices)
        first = self.indices[0] if self.indices else 0
        is_run = self.indices == tuple(range(first, first + len(self.indices)))
        self._covers_batch = is_run and len(self.indices) == batch
        self._run = slice(first, first + len(self.indices)) if is_run else None
        self._index = None if is_run else upload(self.indices, torch.int64, device)

    def __bool__(self) -> bool:
        return bool(self.indices)

    def of(self, values: Tensor) -> Tensor:
        """Return these rows of ``values``: a copy, or a view of ``values`` if they are consecutive."""
        if self._covers_batch:
            return values
        return values[self._run] if self._index is None else values.index_select(0, self._index)

    @property
    def shares_memory(self) -> bool:
        """True if ``of`` returns a view: changes of it need not be put back."""
        return self._index is None

    def put(self, values: Tensor, into: Tensor) -> Tensor:
        """Return ``into`` with ``values`` in these rows; may overwrite ``into``."""
        if self._covers_batch:
            return values
        if self._index is not None:
            return into.index_copy_(0, self._index, values)
        into[self._run].copy_(values)
        return into


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """A row that uses a processor."""

    index: int
    """Index of the row in the batch."""
    sequence: Sequence
    use: ProcessorUse

    @property
    def row(self) -> LogitsRow:
        """The row in the form that the processor receives."""
        sequence = self.sequence
        return LogitsRow(state=self.use.state, tokens=sequence.tokens, prompt_len=sequence.prompt_len)


class LastSampledTokens:
    """The tokens that were sampled last, some of which the host may not know yet.

    Args:
        sequences: the sequences of the tokens.
        tokens: ``[len(sequences)]`` int64 on the device.
    """

    def __init__(self, sequences: Ordered[Sequence], tokens: Tensor) -> None:
        self._sequences = sequences
        self._tokens = tokens

    def of(self, members: Ordered[ProcessorRow], ahead: Ordered[int]) -> Tensor | None:
        """Return the token of each member whose sequence lacks it, -1 for others; ``None`` if none lacks its token."""
        row_by_id = {id(member): row for row, member in enumerate(self._sequences)} if any(ahead) else {}
        rows = [row_by_id.get(id(member.sequence), -1) if ahead[member.index] else -1 for member in members]
        if max(rows) < 0:
            return None
        device = self._tokens.device
        tokens = self._tokens.index_select(0, upload([max(0, row) for row in rows], torch.int64, device))
        if min(rows) >= 0:
            return tokens
        return torch.where(upload(rows, torch.int64, device) < 0, -1, tokens)


class ProcessorGroup:
    """The rows of a batch that use one processor.

    Args:
        loaded: the processor.
        members: its rows.
        count: rows of the whole batch.
        device: the device of the logits.
    """

    def __init__(self, loaded: LoadedProcessor, members: list[ProcessorRow], count: int, device: torch.device) -> None:
        self.loaded = loaded
        self.members = members
        self._count = count
        self._device = device
        self._needs_tokens = loaded.processor.needs_tokens
        self._batch: LogitsBatch | None = None
        self._known: list[int] = []
        self.error: RequestError | None = None
        self._rows = RowSelection([member.index for member in members], count, device)

    def apply(self, logits: Tensor, ahead: Ordered[int], before: LastSampledTokens | None) -> Tensor:
        """Return ``logits``, changed in these rows; may overwrite them.

        Args:
            logits: ``[rows, vocabulary]`` of the whole batch, contiguous.
            ahead: for each row of the batch, the number of tokens before its own that its sequence does not have yet.
            before: the tokens of the step queued last.
        """
        if self.error is not None:
            return logits
        try:
            batch = self._follow(ahead, before)
            picked = self._rows.of(logits)
            generated = [member.sequence.generated + ahead[member.index] for member in self.members]
            changed = batch.apply(picked, generated)
            self._check(changed, picked)
            return logits if changed is picked and self._rows.shares_memory else self._rows.put(changed, logits)
        except BaseException as error:
            self.fail(error)
            return logits

    def append(self, tokens: Tensor) -> None:
        """Pass the tokens ``[rows]`` that were sampled for the batch to the processor, if it needs them."""
        if not self._needs_tokens or self._batch is None:
            return
        try:
            self._batch.append(self._rows.of(tokens))
            self._known = [known + 1 for known in self._known]
        except BaseException as error:
            self.fail(error)

    def take_over(self, earlier: ProcessorGroup, ahead: Ordered[int]) -> None:
        """Take over the state of ``earlier``, a group of the previous batch, for the sequences that both have."""
        if not self._needs_tokens or earlier._batch is None or _cannot_regroup(earlier._batch):
            return
        try:
            self._regroup(earlier, earlier._batch, ahead)
        except BaseException as error:
            self.fail(error)

    def _regroup(self, earlier: ProcessorGroup, earlier_batch: LogitsBatch, ahead: Ordered[int]) -> None:
        row_by_id = {id(member.sequence): row for row, member in enumerate(earlier.members)}
        kept, joining = list[ProcessorRow](), list[ProcessorRow]()
        for member in self.members:
            row = row_by_id.get(id(member.sequence))
            is_kept = row is not None and earlier._known[row] == len(member.sequence.tokens) + ahead[member.index]
            (kept if is_kept else joining).append(member)
        if not kept:
            return
        rows = [row_by_id[id(member.sequence)] for member in kept]
        fresh = self._make(joining) if joining else None
        batch = earlier_batch.regroup(rows, fresh)
        if batch is None:
            return
        self._batch, self.members = batch, kept + joining
        self._known = [earlier._known[row] for row in rows] + [len(member.sequence.tokens) for member in joining]
        self._rows = RowSelection([member.index for member in self.members], self._count, self._device)

    def _follow(self, ahead: Ordered[int], before: LastSampledTokens | None) -> LogitsBatch:
        """Return the processor's batch, which then knows every token before those that are sampled next."""
        batch = self._batch
        if batch is not None and not self._needs_tokens:
            return batch
        lengths = [len(member.sequence.tokens) + ahead[member.index] for member in self.members]
        if batch is not None and self._known == lengths:
            return batch
        if batch is None or any(known > length for known, length in zip(self._known, lengths, strict=True)):
            batch = self._batch = self._make(self.members)
            self._known = [len(member.sequence.tokens) for member in self.members]
            pending = None if before is None or not self._needs_tokens else before.of(self.members, ahead)
            if pending is not None:
                batch.append(pending)
            self._known = lengths
        else:
            self._append_forced(batch, lengths)
        return batch

    def _append_forced(self, batch: LogitsBatch, lengths: list[int]) -> None:
        """Append tokens that were not sampled, but forced, and that the host knows."""
        missing = [
            member.sequence.tokens[known:length]
            for member, known, length in zip(self.members, self._known, lengths, strict=True)
        ]
        for index in range(max(map(len, missing))):
            tokens = [part[index] if index < len(part) else -1 for part in missing]
            batch.append(upload(tokens, torch.int64, self._device))
        self._known = lengths

    def _make(self, members: Ordered[ProcessorRow]) -> LogitsBatch:
        batch = self.loaded.processor.batch([member.row for member in members])
        if not isinstance(batch, LogitsBatch):
            raise TypeError(f"batch() returned {type(batch).__name__}, not a LogitsBatch")
        return batch

    @staticmethod
    def _check(changed: Tensor, logits: Tensor) -> None:
        if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != (logits.shape, logits.dtype):
            actual = f"{changed.dtype} {list(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise TypeError(f"apply() returned {actual} for logits {logits.dtype} {list(logits.shape)}")

    def fail(self, error: BaseException) -> None:
        """Record an error that ends the requests of these rows, whose logits are no longer valid."""
        if not is_error(error):
            raise error
        self.error = RequestError(self.loaded.describe(error), SERVER_ERROR)
        self._batch = None


def _cannot_regroup(batch: LogitsBatch) -> bool:
    return type(batch).regroup is LogitsBatch.regroup


def groups_of(sequences: Ordered[Sequence], device: torch.device) -> list[ProcessorGroup]:
    """Return a group for each processor that is used in a batch, in the order in which processors run."""
    members: dict[LoadedProcessor, list[ProcessorRow]] = {}
    errors: dict[LoadedProcessor, BaseException] = {}
    for index, sequence in enumerate(sequences):
        for use in sequence.sampling.processors:
            try:
                if use.is_done(sequence.generated):
                    continue
            except BaseException as error:
                errors[use.loaded] = error
            members.setdefault(use.loaded, []).append(ProcessorRow(index, sequence, use))
    groups = [
        ProcessorGroup(loaded, members[loaded], len(sequences), device)
        for loaded in sorted(members, key=lambda processor: processor.rank)
    ]
    for group in groups if errors else ():
        if group.loaded in errors:
            group.fail(errors[group.loaded])
    return groups


def errors_of(groups: Ordered[ProcessorGroup]) -> Mapping[int, RequestError]:
    """Return the errors of the processors by row of the batch."""
    return {member.index: group.error for group in groups if group.error is not None for member in group.members}
