"""Tracing of programs: what a program appends, without a backend.

Arguments that are not given are placeholders, and so are generated variables. A program that decides by a placeholder,
or formats it, cannot be traced.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sglang_plug_lang.backends.base import Backend, Completion, Prompt
from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.errors import LanguageError
from sglang_plug_lang.ir import (
    Concatenation,
    Expression,
    Fork,
    ForkItem,
    GenerationOptions,
    RoleBegin,
    RoleBlock,
    RoleEnd,
    Text,
    parts,
    setters,
)
from sglang_plug_lang.templates import ChatTemplate

from .interpreter import Interpreter
from .variable import Variable


class TracingBackend:
    """A backend that generates nothing, for tracing without a server."""

    def __init__(self, chat_template: ChatTemplate) -> None:
        self.chat_template = chat_template

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """Raise ``LanguageError``: a traced program has no backend."""
        self._refuse()

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """Raise ``LanguageError``: a traced program has no backend."""
        self._refuse()

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """Raise ``LanguageError``: a traced program has no backend."""
        self._refuse()

    def flush_cache(self) -> bool:
        """Raise ``LanguageError``: a traced program has no backend."""
        self._refuse()

    def get_server_info(self) -> dict[str, Any]:
        """Raise ``LanguageError``: a traced program has no backend."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise LanguageError("a traced program has no backend")


class PrefixEnd(Exception):
    """The constant beginning of a traced program has ended."""


@dataclass(frozen=True)
class Placeholder(Expression):
    """Text that is unknown while a program is traced."""

    name: str

    def __str__(self) -> str:
        self._refuse()

    def __format__(self, format_spec: str) -> str:
        self._refuse()

    def __bool__(self) -> bool:
        self._refuse()

    def __iter__(self) -> Iterator[Any]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(f"{self.name!r} is unknown while the program is traced: append it with +, not in an f-string")


@dataclass(frozen=True)
class Argument(Placeholder):
    """An argument that is not given."""


@dataclass(frozen=True)
class TracedVariable(Placeholder):
    """A variable that a traced program would generate."""

    source: Expression
    """The expression that sets it."""


@dataclass(frozen=True)
class Trace:
    """The expressions that a program appends, in order; messages are split into their beginning, parts and end."""

    nodes: tuple[Expression, ...]
    forks: tuple[Trace, ...] = ()
    """Traces of the forks and of the programs that the program started."""

    @property
    def last_node(self) -> Trace:
        """The trace itself, of which ``print_graph_dfs`` describes all nodes up to the last one."""
        return self

    def print_graph_dfs(self) -> str:
        """Return a description with one line for each node."""
        return "".join(f"%{index} = {node}\n" for index, node in enumerate(map(repr, self.nodes)))


class TracingInterpreter(Interpreter):
    """Records expressions instead of executing them.

    Args:
        backend: only its chat template is used, which renders messages for the prefix.
        only_prefix: end the program with ``PrefixEnd`` as soon as it appends something that is not constant.
    """

    def __init__(self, backend: Backend, only_prefix: bool = False) -> None:
        super().__init__(backend, GenerationOptions())
        self._only_prefix, self._is_constant = only_prefix, True
        self._nodes: list[Expression] = []
        self._children: list[TracingInterpreter] = []

    def trace(self) -> Trace:
        """Return what was recorded so far."""
        return Trace(tuple(self._nodes), tuple(child.trace() for child in self._children))

    def prefix(self) -> str:
        """Return the rendered text before the first node that is not constant."""
        return self._transcript.text

    def submit(self, expression: Expression) -> None:
        """Record an expression; the variables that it sets become placeholders."""
        for name, source in setters(expression):
            self._variables[name] = Variable(TracedVariable(name, source))
        self._record(expression)

    def forks(self, size: int) -> list[Interpreter]:
        """Record the fork, and return a recorder for each copy."""
        self._record(Fork(size))
        return [self._fork(index) for index in range(size)]

    def _fork(self, index: int) -> TracingInterpreter:
        child = self.child()
        child._variables = {name: variable.copy() for name, variable in self._variables.items()}
        child._record(ForkItem(index))
        return child

    def child(self) -> TracingInterpreter:
        """Return a recorder for a program that this one starts."""
        child = TracingInterpreter(self.backend, self._only_prefix)
        self._children.append(child)
        return child

    def _record(self, expression: Expression) -> None:
        match expression:
            case Concatenation():
                for part in parts(expression):
                    self._record(part)
            case RoleBlock():
                for part in (RoleBegin(expression.role), expression.body, RoleEnd(expression.role)):
                    self._record(part)
            case _:
                self._nodes.append(expression)
                if self._is_constant:
                    self._render(expression)

    def _render(self, expression: Expression) -> None:
        match expression:
            case Text():
                self._transcript.pieces.append(self._transcript.add_text(expression.text))
            case RoleBegin():
                self._transcript.pieces.extend(self._transcript.begin_role(expression.role))
            case RoleEnd():
                self._transcript.pieces.append(self._transcript.end_role(expression.role))
            case _:
                self._end_prefix()

    def _end_prefix(self) -> None:
        self._is_constant = False
        if self._only_prefix:
            raise PrefixEnd


_current: contextvars.ContextVar[TracingInterpreter | None] = contextvars.ContextVar("tracing", default=None)


def current_tracing() -> TracingInterpreter | None:
    """Return the recorder of the program that is being traced in this context."""
    return _current.get()


@contextlib.contextmanager
def tracing(interpreter: TracingInterpreter) -> Iterator[None]:
    """Trace the programs that are called inside, instead of running them."""
    token = _current.set(interpreter)
    try:
        yield
    finally:
        _current.reset(token)
