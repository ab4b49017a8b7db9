"""The least time that a machine's limits allow for a piece of work.

A step over ``T`` new tokens reads every matrix and the keys and values of its contexts, and multiplies; it cannot
take less than the longer of the two. Norms, activations, sampling and the program around them are taken as free,
and a prefix that sequences share as read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.models import BYTES, Shape


class Machine(Protocol):
    """The limits that bounds need; ``probe.Limits`` has them."""

    @property
    def read_bandwidth(self) -> float:
        """Bytes per second."""

    def product_rate(self, rows: int) -> float:
        """FLOP/s in bfloat16 where ``rows`` rows are multiplied at once."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's part of a step: ``new`` tokens after ``known`` ones, of which ``shared`` are read by others too."""

    new: int
    known: int
    shared: int = 0


def flops(shape: Shape, rows: Sequence[Row], logits: int) -> float:
    """Multiplications and additions of a step that makes ``logits`` rows of logits."""
    tokens = sum(row.new for row in rows)
    pairs = sum(row.new * row.known + row.new * (row.new + 1) / 2 for row in rows)  # causal
    attention = 4.0 * shape.layers * shape.heads * shape.dim * pairs
    return 2.0 * shape.layers * shape.layer_weights * tokens + 2.0 * shape.head_weights * logits + attention


def bytes_read(shape: Shape, rows: Sequence[Row], logits: int) -> float:
    """Bytes of matrices, keys and values that a step reads; those of a shared prefix once."""
    weights = shape.layers * shape.layer_weights + (shape.head_weights if logits else 0)
    known = sum(row.known - row.shared for row in rows) + max((row.shared for row in rows), default=0)
    return float(weights * BYTES + shape.kv_bytes * known)


def step_seconds(shape: Shape, machine: Machine, rows: Sequence[Row], logits: int) -> float:
    """The least seconds of a step in bfloat16."""
    reading = bytes_read(shape, rows, logits) / machine.read_bandwidth
    tokens = sum(row.new for row in rows)
    return max(reading, flops(shape, rows, logits) / machine.product_rate(tokens))


def run_seconds(
    shape: Shape, machine: Machine, *, requests: int, input_len: int, output_len: int, shared: int = 0
) -> float:
    """The least seconds from sending ``requests`` at once to the last token of the last one.

    Each prompt has ``shared`` tokens in common with the others, computed once, and ``input_len`` own ones. The
    last step of a prompt gives the first output token.
    """
    total = 0.0
    if shared:
        total += step_seconds(shape, machine, [Row(shared, 0)], 0)
    total += step_seconds(shape, machine, [Row(input_len, shared, shared)] * requests, requests)
    for done in range(1, output_len):
        known = shared + input_len + done - 1
        total += step_seconds(shape, machine, [Row(1, known, shared)] * requests, requests)
    return total
