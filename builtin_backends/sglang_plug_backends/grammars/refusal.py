"""The error for constraints that cannot be enforced."""

from __future__ import annotations


class Refusal(ValueError):
    """A constraint cannot be enforced; the message names the reason and the path."""
