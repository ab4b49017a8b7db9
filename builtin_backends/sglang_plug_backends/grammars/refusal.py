"""Why a constraint cannot be enforced."""

from __future__ import annotations


class Refusal(ValueError):
    """Names what cannot be enforced and where it stands."""
