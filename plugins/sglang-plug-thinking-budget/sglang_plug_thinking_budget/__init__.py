"""A limit on the reasoning of a request, in tokens. Declares only."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import LogitsProcessorSpec, hookimpl

api_version = 1
LAST = 1000
"""After all built-in processors, so that no bias or penalty prevents the end marker."""


@hookimpl
def register_logits_processors() -> Iterator[LogitsProcessorSpec]:
    yield LogitsProcessorSpec(
        name="thinking-budget",
        target=f"{__name__}.processor:ThinkingBudget",
        request_fields=f"{__name__}.fields:ThinkingBudgetFields",
        order=LAST,
        example=f"{__name__}.example:requests",
        summary="ends the reasoning of a request after a number of tokens",
    )
