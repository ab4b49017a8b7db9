"""Variables that a request sets for the chat template, including the reasoning effort."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.text.reasoning import SWITCHES
from sglang_plug_api.text.text_engine import TextEngine

REQUEST_NAMES = frozenset({"messages", "tools", "add_generation_prompt"})
TOKEN_NAMES = frozenset(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
FUNCTION_NAMES = frozenset(
    {"raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace"}
)
RESERVED = REQUEST_NAMES | TOKEN_NAMES | FUNCTION_NAMES
"""Template variables that ``chat_template_kwargs`` cannot set; a tokenizer may reserve more."""
EFFORT = "reasoning_effort"
"""The field of requests, and the variable of templates that support an effort."""


def template_variables(
    engine: TextEngine,
    kwargs: Mapping[str, Any] | None,
    effort: str | float | None,
    *,
    tools: bool,
    field: str = EFFORT,
    strict: bool = True,
) -> dict[str, Any]:
    """Return ``kwargs`` with the variables that stand for ``effort`` in the model's chat template.

    ``tools``: the template gets tools. ``field``: the field of the request that has the effort. ``strict``: an effort
    of none must have an effect.

    Raises ``ApiError`` for variables that callers may not set, and if ``strict`` for an effort of none where reasoning
    cannot be disabled. Other efforts have no effect on templates without such a variable.
    """
    variables = dict(kwargs or {})
    for name in variables:
        if name in RESERVED:
            raise ApiError(f"chat_template_kwargs cannot set {name!r}", param="chat_template_kwargs")
    return variables if effort is None else {**_effort_variables(engine, effort, tools, field, strict), **variables}


def _effort_variables(engine: TextEngine, effort: str | float, tools: bool, field: str, strict: bool) -> dict[str, Any]:
    template = engine.tokenizer.chat_template(tools=tools) or ""
    names = set(re.findall(r"\w+", template))
    if EFFORT in names:
        return {EFFORT: effort}
    if effort != "none":  # this template cannot express how much to reason
        return {}
    switches = dict.fromkeys(names.intersection(SWITCHES), False)
    if strict and not switches and engine.parsers.reasoning is not None:
        raise ApiError(f"{field}: the chat template of this model has no way to leave reasoning out", param=field)
    return switches
