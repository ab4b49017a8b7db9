"""Drafts from earlier tokens of the same sequence: prompt lookup."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import DrafterSpec, hookimpl


@hookimpl
def register_drafters() -> Iterator[DrafterSpec]:
    yield DrafterSpec(
        name="ngram",
        target=f"{__name__}.drafter:NGramDrafter",
        settings=f"{__name__}.settings:NGramSettings",
        summary="what followed the last tokens where they stood before, in the prompt or in the output",
    )
