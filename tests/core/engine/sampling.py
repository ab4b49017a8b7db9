"""Sampling at once, by a sampler that knows of nothing before."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from torch import Tensor

from sglang_plug import TokenLogprob
from sglang_plug.engine.masks import Allowed
from sglang_plug.engine.sampler import Sampler
from sglang_plug.engine.sequence import Sequence


def sample(
    logits: Tensor, sequences: Ordered[Sequence], allowed: Allowed | None = None
) -> tuple[list[int], list[TokenLogprob | None]]:
    """A token for each row, and what is reported of it."""
    return Sampler().draw(logits, sequences, allowed).read()
