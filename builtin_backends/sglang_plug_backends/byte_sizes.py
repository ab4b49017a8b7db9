"""Numbers of bytes in messages."""

from __future__ import annotations


def gigabytes(count: float) -> str:
    """Format a number of bytes; a GB is ``2**30`` bytes."""
    return f"{count / (1 << 30):.2f} GB"
