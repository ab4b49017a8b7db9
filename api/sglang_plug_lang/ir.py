"""Expressions that a program appends to its state: plain values, combined with ``+``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .choices import ChoicesMethod
from .reasoning import ReasoningFormat

REGEX_INT = r"-?(0|[1-9][0-9]{0,17})"
REGEX_FLOAT = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[^"\\\n\r]*"'
PATTERNS: Mapping[type, str] = {int: REGEX_INT, float: REGEX_FLOAT, bool: REGEX_BOOL, str: REGEX_STR}
"""Maps a type to the regular expression of its values."""

SAMPLING_NAMES: Mapping[str, str] = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
"""Options whose name in ``sampling_params`` differs."""
RESULT_FIELDS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
"""Options for further results besides text; they are fields next to ``sampling_params``."""


@dataclass(frozen=True)
class GenerationOptions:
    """Generation options; ``None`` means the program's option, and then the server's default."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: str | Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None

    def __post_init__(self) -> None:
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema exclude each other: give one of them")

    def over(self, defaults: GenerationOptions) -> GenerationOptions:
        """Return these options, with ``defaults`` for those that are not set."""
        own = self._set_options()
        inherited = defaults._set_options()
        if "regex" in own or "json_schema" in own:
            inherited = {name: value for name, value in inherited.items() if name not in ("regex", "json_schema")}
        return GenerationOptions(**{**inherited, **own})

    def sampling_params(self) -> dict[str, Any]:
        """Return the ``sampling_params`` of ``/generate``."""
        options = {name: value for name, value in self._set_options().items() if name not in RESULT_FIELDS}
        return {SAMPLING_NAMES.get(name, name): plain(value) for name, value in options.items()}

    def result_fields(self) -> dict[str, Any]:
        """Return the fields of ``/generate`` next to ``sampling_params``."""
        return {name: value for name, value in self._set_options().items() if name in RESULT_FIELDS}

    def names(self) -> frozenset[str]:
        """Return the names of the options that are set."""
        return frozenset(self._set_options())

    def _set_options(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}


OPTION_NAMES = frozenset(item.name for item in dataclasses.fields(GenerationOptions))


def plain(value: Any) -> Any:
    """Return tuples as lists, and mappings as dictionaries."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


class Expression:
    """A part of a prompt. ``+`` joins parts, and parts with text on either side."""

    def __add__(self, other: Expression | str) -> Expression:
        return _joined(self, other)

    def __radd__(self, other: str) -> Expression:
        return _joined(other, self)


@dataclass(frozen=True)
class Text(Expression):
    """Text as it is."""

    text: str


@dataclass(frozen=True)
class Concatenation(Expression):
    """Several parts in order; none of them is a concatenation."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Generate(Expression):
    """Text to generate and keep under ``name``."""

    name: str | None
    options: GenerationOptions = field(default_factory=GenerationOptions)
    dtype: type | None = None
    """Type of the variable: ``int``, ``float``, ``bool`` or ``str``."""
    reasoning: ReasoningFormat | None = None
    """Format of reasoning before the answer, which is kept in another variable."""


@dataclass(frozen=True)
class Select(Expression):
    """A choice to select and keep under ``name``."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if not self.choices or not all(self.choices):
            raise ValueError(f"select needs choices that are not empty, got {list(self.choices)!r}")


@dataclass(frozen=True)
class RoleBegin(Expression):
    """The beginning of a message."""

    role: str


@dataclass(frozen=True)
class RoleEnd(Expression):
    """The end of a message."""

    role: str


@dataclass(frozen=True)
class RoleBlock(Expression):
    """A whole message."""

    role: str
    body: Expression


@dataclass(frozen=True)
class Image(Expression):
    """An image: base64 text, or a URL."""

    data: str


@dataclass(frozen=True)
class ScopeBegin(Expression):
    """The beginning of a scope, whose text is also kept in a variable."""

    name: str


@dataclass(frozen=True)
class ScopeEnd(Expression):
    """The end of a scope."""

    name: str


@dataclass(frozen=True)
class SeparateReasoning(Expression):
    """Text whose reasoning is kept apart: ``NAME`` has the answer, ``NAME_reasoning_content`` the reasoning."""

    model_type: str
    expr: Expression

    def __post_init__(self) -> None:
        ReasoningFormat.of(self.model_type)  # raises for an unknown one

    def generating(self) -> Expression:
        """Return the expression, in which each ``Generate`` has the format of the reasoning."""
        return _with_reasoning(self.expr, ReasoningFormat.of(self.model_type))


@dataclass(frozen=True)
class CachePrefix(Expression):
    """Fill the backend's prefix cache with the text so far, if it has one that can be filled."""


class ForkedState(Protocol):
    """A fork of a conversation."""

    def forked_text(self) -> str:
        """Wait until all is executed, and return the text since the fork. Raises the fork's error."""


@dataclass(frozen=True)
class AppendForks(Expression):
    """The text that each fork has appended, in order."""

    states: Sequence[ForkedState]


@dataclass(frozen=True)
class Fork(Expression):
    """The position in a trace where a program forks; it cannot be appended to a state that generates."""

    number: int


@dataclass(frozen=True)
class ForkItem(Expression):
    """The beginning of a fork's trace."""

    index: int


def as_expression(value: Expression | str) -> Expression:
    """Return ``value`` as an expression. Raises ``TypeError`` for values that cannot be part of a prompt."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    raise TypeError(
        f"only text and expressions such as gen(...) can be appended, got {type(value).__name__}: use str()"
    )


def parts(value: Expression | str) -> tuple[Expression, ...]:
    """Return the parts of a concatenation, or the expression itself as the only part."""
    expression = as_expression(value)
    return expression.parts if isinstance(expression, Concatenation) else (expression,)


def variables(expression: Expression) -> Iterator[str]:
    """Yield the names of the variables that ``expression`` sets; a scope's variable is set at its end."""
    for name, _ in setters(expression):
        yield name


def setters(expression: Expression) -> Iterator[tuple[str, Expression]]:
    """Yield the name of each variable that ``expression`` sets, with the part of it that sets the variable."""
    match expression:
        case Concatenation():
            for part in expression.parts:
                yield from setters(part)
        case RoleBlock():
            yield from setters(expression.body)
        case SeparateReasoning():
            yield from setters(expression.generating())
        case Generate(name=str() as name, reasoning=reasoning):
            yield name, expression
            if reasoning is not None:
                yield reasoning.variable(name), expression
        case Select(name=str() as name) | ScopeBegin(name=name):
            yield name, expression


def _with_reasoning(expression: Expression, reasoning: ReasoningFormat) -> Expression:
    match expression:
        case Concatenation():
            return Concatenation(tuple(_with_reasoning(part, reasoning) for part in expression.parts))
        case RoleBlock():
            return RoleBlock(expression.role, _with_reasoning(expression.body, reasoning))
        case Generate():
            return dataclasses.replace(expression, reasoning=reasoning)
    return expression


def _joined(*values: Expression | str) -> Concatenation:
    return Concatenation(tuple(part for value in values for part in parts(value)))
