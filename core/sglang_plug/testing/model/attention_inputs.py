"""Batches for the conformance tests: sequences over shuffled, aligned pages of one KV pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_plug.contracts.model.batch import ForwardBatch, KVPool


class ShuffledSlots:
    """Hands out aligned pages of slots in random order; no sequence gets the first page, which holds the spare slot 0.

    Args:
        tokens: greatest number of tokens that will be requested.
        sequences: number of sequences of these tokens; each may use a part of its last page only.
        page_size: slots in a page.
        generator: source of the order.
    """

    def __init__(self, tokens: int, sequences: int, page_size: int, generator: torch.Generator) -> None:
        pages = tokens // page_size + sequences + 1
        self.page_size = page_size
        self.rows = (pages + 1) * page_size
        self._free = (torch.randperm(pages, generator=generator) + 1).tolist()

    def extend(self, slots: list[int], length: int) -> None:
        """Add slots to a sequence's ``slots`` until there are ``length``."""
        while len(slots) < length:
            within = len(slots) % self.page_size
            page = slots[-1] // self.page_size if within else self._free.pop()
            slots.append(page * self.page_size + within)


def make_batch(
    contexts: Sequence[Sequence[int]],
    query_lens: Sequence[int],
    *,
    tokens: Tensor | None = None,
    kv: KVPool | None,
    page_size: int = 1,
    device: torch.device,
) -> ForwardBatch:
    """Build a step whose sequence ``i`` has the slots ``contexts[i]``, of which the last ``query_lens[i]`` are new.

    ``tokens`` ``[T]`` are the new tokens of all sequences one after the other; ``None``: zeros. Without a pool
    (``kv=None``) only the lengths of ``contexts`` matter.
    """
    kv_lens = [len(context) for context in contexts]
    tables = torch.zeros(len(contexts), max(kv_lens), dtype=torch.int64)
    slots: list[int] = []
    positions: list[int] = []
    for row, (context, new) in enumerate(zip(contexts, query_lens, strict=True)):
        positions += range(len(context) - new, len(context))
        slots += context[len(context) - new :]
        tables[row, : len(context)] = torch.tensor(context)
    if kv is None:
        tables.zero_()
        slots = [0] * len(slots)
    return ForwardBatch(
        input_ids=torch.zeros(len(slots), dtype=torch.int64, device=device) if tokens is None else tokens.to(device),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        tables=tables.to(device),
        query_lens=list(query_lens),
        kv_lens=kv_lens,
        page_size=page_size,
        kv=kv,
    )
