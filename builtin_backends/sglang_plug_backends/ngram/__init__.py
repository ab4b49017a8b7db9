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
        summary="prompt lookup: the tokens that followed the last n-gram earlier in the prompt or output",
    )
