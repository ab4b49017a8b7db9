"""Lower bounds on the time of a piece of work from a machine's limits.

A step over ``T`` new tokens reads every matrix and the keys and values of its contexts, and multiplies; it cannot take
less than the longer of the two. Norms, activations, sampling and the surrounding program are considered free, and a
shared prefix is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.common.models import BYTES, Shape


class Machine(Protocol):
    """Interface of the limits that bounds need; see ``probe.Limits``."""

    @property
    def read_bandwidth(self) -> float:
        """Return the read bandwidth in bytes per second."""

    def product_rate(self, rows: int) -> float:
        """Return the bfloat16 rate in FLOP/s for products with ``rows`` rows."""


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence's part of a step: ``new`` tokens after ``known`` ones, of which others share ``shared``."""

    new: int
    known: int
    shared: int = 0


def flops(shape: Shape, rows: Sequence[Row], logits: int) -> float:
    """Count multiplications and additions of a step that computes ``logits`` rows of logits."""
    tokens = sum(row.new for row in rows)
    pairs = sum(row.new * row.known + row.new * (row.new + 1) / 2 for row in rows)  # causal
    attention = 4.0 * shape.layers * shape.heads * shape.dim * pairs
    return 2.0 * shape.layers * shape.layer_weights * tokens + 2.0 * shape.head_weights * logits + attention


def bytes_read(shape: Shape, rows: Sequence[Row], logits: int) -> float:
    """Count the bytes of matrices, keys and values that a step reads; a shared prefix counts once."""
    weights = shape.layers * shape.layer_weights + (shape.head_weights if logits else 0)
    known = sum(row.known - row.shared for row in rows) + max((row.shared for row in rows), default=0)
    return float(weights * BYTES + shape.kv_bytes * known)


def step_seconds(shape: Shape, machine: Machine, rows: Sequence[Row], logits: int) -> float:
    """Return the minimum seconds of a step in bfloat16."""
    reading = bytes_read(shape, rows, logits) / machine.read_bandwidth
    tokens = sum(row.new for row in rows)
    return max(reading, flops(shape, rows, logits) / machine.product_rate(tokens))


def run_seconds(
    shape: Shape, machine: Machine, *, requests: int, input_len: int, output_len: int, shared: int = 0
) -> float:
    """Return the minimum seconds from sending ``requests`` at once to the last token of the last one.

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
