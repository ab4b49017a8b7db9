"""Functions that programs are written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .choices import ChoicesMethod, token_length_normalized
from .images import image_data
from .ir import (
    PATTERNS,
    Expression,
    Generate,
    GenerationOptions,
    Image,
    RoleBegin,
    RoleBlock,
    RoleEnd,
    Select,
    SeparateReasoning,
    as_expression,
)
from .templates import ASSISTANT, SYSTEM, USER


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
) -> Expression:
    """Generate text and keep it under ``name``. Missing options are taken from the program, then from the server.

    Args:
        n: samples; with more than one, the variable is a list and the text continues with the first.
        dtype: ``int``, ``float``, ``bool`` or ``str``: a value of this type (``str``: quoted text, without the quotes).
        choices: select the likeliest of these instead of generating; see ``select``.
        regex, json_schema: constraints on the text; they need a server with a grammar backend.
    """
    if choices is not None:
        return select(name, choices, temperature or 0.0, choices_method or token_length_normalized)
    kind = _kind(dtype)
    if kind is not None and (regex is not None or json_schema is not None):
        raise ValueError("dtype excludes regex and json_schema: give one of them")
    options = GenerationOptions(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        n=n,
        stop=stop,
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        ignore_eos=ignore_eos,
        regex=regex if kind is None else PATTERNS[kind],
        json_schema=json_schema,
        return_logprob=return_logprob,
        logprob_start_len=logprob_start_len,
        top_logprobs_num=top_logprobs_num,
        return_text_in_logprobs=return_text_in_logprobs,
    )
    return Generate(name, options, kind)


def gen_int(name: str | None = None, **options: Any) -> Expression:
    """Generate a whole number; ``options`` are those of ``gen``."""
    return gen(name, dtype=int, **options)


def gen_string(name: str | None = None, **options: Any) -> Expression:
    """Generate a quoted text; the variable is without the quotes; ``options`` are those of ``gen``."""
    return gen(name, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Expression:
    """Select the choice that is likeliest here; the text continues with it, and it is kept under ``name``."""
    if isinstance(choices, str) or choices is None:
        raise ValueError("select needs choices, a list of texts")
    return Select(name, tuple(choices), choices_method, temperature)


def image(source: str | bytes | Path) -> Expression:
    """Add an image: its bytes, a file, or a URL. Raises ``OSError`` if the file cannot be read."""
    return Image(image_data(source))


def separate_reasoning(expression: Expression, model_type: str) -> Expression:
    """Split the reasoning from the text that ``expression`` generates.

    The variable ``NAME`` has the answer, ``NAME_reasoning_content`` the reasoning, and the text continues with the
    answer alone. The answer arrives in one piece, even with ``stream=True``.

    Args:
        model_type: ``deepseek-r1`` and ``qwen3-thinking`` always reason, ``qwen3`` if it begins with ``<think>``.
    """
    return SeparateReasoning(model_type, expression)


def system(expression: Expression | str = "") -> Expression:
    """Add a system message."""
    return RoleBlock(SYSTEM, as_expression(expression))


def user(expression: Expression | str = "") -> Expression:
    """Add a user message."""
    return RoleBlock(USER, as_expression(expression))


def assistant(expression: Expression | str = "") -> Expression:
    """Add an assistant message, which may contain ``gen``."""
    return RoleBlock(ASSISTANT, as_expression(expression))


def system_begin() -> Expression:
    """Begin a system message."""
    return RoleBegin(SYSTEM)


def system_end() -> Expression:
    """End the system message."""
    return RoleEnd(SYSTEM)


def user_begin() -> Expression:
    """Begin a user message."""
    return RoleBegin(USER)


def user_end() -> Expression:
    """End the user message."""
    return RoleEnd(USER)


def assistant_begin() -> Expression:
    """Begin an assistant message."""
    return RoleBegin(ASSISTANT)


def assistant_end() -> Expression:
    """End the assistant message."""
    return RoleEnd(ASSISTANT)


def _kind(dtype: type | str | None) -> type | None:
    names = {kind.__name__: kind for kind in PATTERNS}
    kind = names.get(dtype) if isinstance(dtype, str) else dtype
    if dtype is not None and kind not in PATTERNS:
        raise ValueError(f"dtype must be int, float, bool or str, got {dtype!r}")
    return kind
