"""What a request sets for the chat template, the effort of reasoning among it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import ApiError
from .reasoning import SWITCHES
from .text import TextEngine

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception"})
"""Template variables that ``chat_template_kwargs`` cannot set."""
EFFORT = "reasoning_effort"
"""Of the request, and of templates that know such a thing."""


def template_variables(
    engine: TextEngine,
    given: Mapping[str, Any] | None,
    effort: str | None,
    *,
    tools: bool,
    field: str = EFFORT,
    insist: bool = True,
) -> dict[str, Any]:
    """``given``, and what stands for ``effort`` in the model's chat template.

    ``tools``: the template is to show some. ``field``: where the request says the effort. ``insist``: an effort of none
    is no wish.

    Raises ``ApiError`` for variables that are not the caller's, and for an effort of none where reasoning cannot be
    left out. Wishes, as other efforts are, have no effect on templates that know none.
    """
    found = dict(given or {})
    for name in found:
        if name in RESERVED:
            raise ApiError(f"chat_template_kwargs cannot set {name!r}", param="chat_template_kwargs")
    return found if effort is None else {**_of_effort(engine, effort, tools, field, insist), **found}


def _of_effort(engine: TextEngine, effort: str, tools: bool, field: str, insist: bool) -> dict[str, Any]:
    template = engine.tokenizer.chat_template(tools=tools) or ""
    names = set(re.findall(r"\w+", template))
    if EFFORT in names:
        return {EFFORT: effort}
    if effort != "none":  # how much the model reasons is its own affair
        return {}
    switches = dict.fromkeys(names.intersection(SWITCHES), False)
    if insist and not switches and engine.parsers.reasoning is not None:
        raise ApiError(f"{field}: the chat template of this model has no way to leave reasoning out", param=field)
    return switches
