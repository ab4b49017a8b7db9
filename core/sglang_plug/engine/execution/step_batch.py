"""The tensors of a step: the tokens, positions and KV slots of its chunks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from itertools import chain

import torch
from torch import Tensor

from sglang_plug.contracts.extension.execution import DeviceTokens
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.ops.host_device_copy import send, upload


def build_batch(
    chunks: Ordered[ScheduledChunk],
    device_tokens: DeviceTokens | None,
    output_rows: list[int] | None,
    page_size: int,
    kv: KVPool | None,
    device: torch.device,
) -> ForwardBatch:
    """Build the tensors of a step, in copies to ``device`` that the host does not wait for.

    ``device_tokens`` holds the tokens that only the device knows, if any.
    """
    drafted = any([chunk.drafts for chunk in chunks])
    kv_lens = [chunk.draft_end if drafted else chunk.end for chunk in chunks]
    slots = array("q")
    for chunk, end in zip(chunks, kv_lens, strict=True):
        slots += chunk.sequence.slots[chunk.start : end]
    positions = chain.from_iterable(chunk.positions for chunk in chunks)
    return ForwardBatch(
        input_ids=_input_ids(chunks, device_tokens, device),
        positions=upload(list(positions), torch.int64, device),
        slots=send(torch.frombuffer(slots, dtype=torch.int64), device),
        tables=slot_tables([chunk.sequence.slots for chunk in chunks], kv_lens, device),
        query_lens=[chunk.width if drafted else chunk.count for chunk in chunks],
        kv_lens=kv_lens,
        page_size=page_size,
        kv=kv,
        output_rows=output_rows,
    )


def _input_ids(chunks: Ordered[ScheduledChunk], device_tokens: DeviceTokens | None, device: torch.device) -> Tensor:
    if device_tokens is not None and len(device_tokens.chunk_indices) == sum(chunk.count for chunk in chunks):
        return device_tokens.tokens
    tokens: list[int] = []
    pending_on_device = []
    for chunk in chunks:
        tokens += chunk.sequence.tokens[chunk.start : chunk.end]
        if chunk.pending_on_device:
            pending_on_device.append(len(tokens))
            tokens.append(0)
        tokens += chunk.drafts
    ids = upload(tokens, torch.int64, device)
    if device_tokens is None:
        return ids
    return ids.index_copy_(0, upload(pending_on_device, torch.int64, device), device_tokens.tokens)


def slot_tables(slots: Ordered[array[int]], ends: Ordered[int], device: torch.device) -> Tensor:
    """Return ``[B, longest]`` int64 on ``device``: each sequence's slots up to its end, padded with 0."""
    longest, rows = max(ends), array("q")
    for sequence_slots, end in zip(slots, ends, strict=True):
        rows += sequence_slots[:end]
        rows.frombytes(bytes(8 * (longest - end)))
    return send(torch.frombuffer(rows, dtype=torch.int64).view(len(ends), longest), device)
