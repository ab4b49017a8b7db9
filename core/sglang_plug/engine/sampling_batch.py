"""What sampling knows of a batch as long as the same sequences are in it: all that does not change from step to step.

It is brought to the device once, in copies that the host does not wait for, and stays there.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.drawing import LARGEST, DrawOptions
from sglang_plug.request import LogprobOptions
from sglang_plug.transfer import send, upload

from .sequence import Sequence

SMALLEST_PENALTY = 1e-20
"""By which a logit can be divided in float32."""


class Rows:
    """Some rows of a batch, for the host and on the device."""

    def __init__(self, places: Ordered[int], batch: int, device: torch.device) -> None:
        self.places = tuple(places)
        self._whole = len(self.places) == batch
        self._index = upload(self.places, torch.int64, device) if self.places and not self._whole else None

    def __bool__(self) -> bool:
        return bool(self.places)

    def of(self, values: Tensor) -> Tensor:
        """These rows of ``values``: a copy, or ``values`` itself if they are all of them."""
        return values if self._index is None else values.index_select(0, self._index)

    def put(self, values: Tensor, into: Tensor) -> Tensor:
        """``into`` with ``values`` in these rows; may overwrite it."""
        return values if self._index is None else into.index_copy_(0, self._index, values)


class Bias:
    """Numbers that are added to single logits."""

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        biases = [one.request.params.logit_bias for one in sequences]
        places = [row * width + token for row, bias in enumerate(biases) for token in bias]
        self._places = upload(places, torch.int64, device) if places else None
        values = [max(-LARGEST, min(value, LARGEST)) for bias in biases for value in bias.values()]
        self._values = upload(values, torch.float32, device)

    def apply(self, logits: Tensor) -> Tensor:
        """Contiguous ``logits``, overwritten."""
        if self._places is not None:
            logits.view(-1).index_add_(0, self._places, self._values)
        return logits


class Penalties:
    """Repetition, frequency and presence penalties, and how often each row's tokens have occurred.

    ``Sequence.counts`` are views of what is counted here, so that they go with a sequence into its next batch.
    """

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        penalised = [row for row, one in enumerate(sequences) if one.request.params.penalised]
        self._rows = Rows(penalised, len(sequences), device)
        self._own: list[Sequence] = []
        if not penalised:
            return
        own = self._own = [sequences[row] for row in penalised]
        params = [one.request.params for one in own]
        repetition = [max(one.repetition_penalty, SMALLEST_PENALTY) for one in params]
        columns = [repetition, [one.frequency_penalty for one in params]]
        columns.append([one.presence_penalty for one in params])
        numbers = send(torch.tensor(columns, dtype=torch.float32), device)[:, :, None]
        self._repetition, self._frequency, self._presence = numbers.unbind()
        found = [_counts(one, width, device) if one.counts is None else one.counts for one in own]
        self._counts = torch.stack(found)  # [rows, 2, vocabulary]: output, prompt
        for one, counts in zip(own, self._counts, strict=True):
            one.counts = counts

    def apply(self, logits: Tensor) -> Tensor:
        """``logits``, overwritten."""
        if not self._rows:
            return logits
        output, seen = self._counts[:, 0], self._counts.sum(1) > 0
        picked, repetition = self._rows.of(logits), self._repetition
        picked = torch.where(seen, torch.where(picked > 0, picked / repetition, picked * repetition), picked)
        picked = picked - output * self._frequency - (output > 0) * self._presence
        return self._rows.put(picked, logits)

    def count(self, tokens: Tensor) -> None:
        """Know of one token ``[batch]`` for each row of the batch; negative ones are none."""
        if self._rows:
            drawn = self._rows.of(tokens)[:, None]
            self._counts[:, 0].scatter_add_(1, drawn.clamp(min=0), (drawn >= 0).to(self._counts.dtype))

    def part_from(self, next_batch: Ordered[Sequence]) -> None:
        """Give those that are not in ``next_batch`` counts of their own, lest they keep everybody's in memory."""
        staying = set(map(id, next_batch))
        for one in self._own:
            if one.counts is not None and id(one) not in staying:
                one.counts = one.counts.clone()


class EarlyStops:
    """Stop tokens that may not come yet. Where a grammar is asked, it sees to that."""

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        self._sequences, self._width, self._device = sequences, width, device
        params = [one.request.params for one in sequences]
        self._able = [
            row
            for row, (one, given) in enumerate(zip(sequences, params, strict=True))
            if given.stop_token_ids and one.generated < given.min_new_tokens and one.grammar is None
        ]
        self._rows: list[int] = []
        self._places: Tensor | None = None

    def apply(self, logits: Tensor, ahead: Ordered[int]) -> Tensor:
        """Contiguous ``logits``, overwritten."""
        if not self._able:
            return logits
        sequences = self._sequences
        rows = [
            row
            for row in self._able
            if sequences[row].generated + ahead[row] < sequences[row].request.params.min_new_tokens
        ]
        if rows != self._rows:
            tokens = [(row, token) for row in rows for token in sequences[row].request.params.stop_token_ids]
            self._rows = rows
            self._places = upload([row * self._width + token for row, token in tokens], torch.int64, self._device)
        if rows and self._places is not None:
            logits.view(-1).index_fill_(0, self._places, -torch.inf)
        return logits


class SamplingBatch:
    """The sequences of a batch, and everything about them.

    Args:
        sequences: in the order of the rows.
        width: tokens of the vocabulary.
        device: where the logits are.
    """

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        self.sequences, self.width, self.device = list(sequences), width, device
        count = len(self.sequences)
        self.bias = Bias(self.sequences, width, device)
        self.penalties = Penalties(self.sequences, width, device)
        self.early_stops = EarlyStops(self.sequences, width, device)
        reporting = [row for row, one in enumerate(self.sequences) if one.request.logprobs is not None]
        self.reporting = Rows(reporting, count, device)
        self.reported = [self.sequences[row].request.logprobs or LogprobOptions() for row in reporting]
        drawn = [row for row, one in enumerate(self.sequences) if not one.request.params.greedy]
        self.drawn = Rows(drawn, count, device)
        self.options: DrawOptions | None = None
        if drawn:
            params = [self.sequences[row].request.params for row in drawn]
            self.options = DrawOptions.of(params, width, lambda tensor: send(tensor, device))

    def holds(self, sequences: Ordered[Sequence], logits: Tensor) -> bool:
        """True if it is about just these sequences, in this order, and logits like these."""
        return self.sequences == list(sequences) and (self.width, self.device) == (logits.shape[-1], logits.device)


def _counts(sequence: Sequence, width: int, device: torch.device) -> Tensor:
    """How often each token occurs in the output and in the prompt: ``[2, vocabulary]``."""
    tokens = upload(sequence.tokens, torch.int64, device)
    counts = torch.zeros(2, width, device=device)
    for row, part in zip(counts, (tokens[sequence.prompt_len :], tokens[: sequence.prompt_len]), strict=True):
        row.index_add_(0, part, torch.ones(len(part), device=device))
    return counts
