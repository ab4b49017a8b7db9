"""The parser contract: splitting a model's output into text, reasoning and function calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .grammar import Constraint


@dataclass(frozen=True, slots=True)
class Text:
    """A further part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A further part of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a function call; ``index`` counts the calls of one output from 0."""

    index: int
    name: str
    id: str | None = None
    """The id that the model gave the call, if any."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further part of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call. Its arguments are a whole JSON object, unless the output was cut off or malformed."""

    index: int


Event = Text | Reasoning | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class ReasoningBlockMarks:
    """The markers around each block of reasoning, which other text may follow before the answer."""

    ends: tuple[str, ...]
    """The first one that occurs ends a block; ``ends[0]`` may be written anywhere within one."""
    opening: str = ""
    """The marker that begins a block. Empty: every output begins inside one."""
    repeats: bool = False
    """True if a block may begin anywhere in an output, and further ones after it; otherwise only at its beginning."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The markers that separate reasoning from the rest of an output; a constraint applies after one of ``ends``."""

    ends: tuple[str, ...]
    opening: str = ""
    """The marker that begins reasoning; an output without it has none. Empty: every output begins inside reasoning."""
    opened: str = ""
    """The marker that began the reasoning, if the prompt ends with it."""
    block: ReasoningBlockMarks | None = None
    """The markers of each block of reasoning; ``None``: there is one block, between ``opening`` and one of ``ends``."""


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    """The reasoning of an output, in tokens: for components that count it or bound it."""

    ends: tuple[tuple[int, ...], ...]
    """Token sequences; the first one that occurs ends a block, ``ends[0]`` may be written anywhere within one. Where
    the tokens are text, the same text in other tokens ends it, too. Empty: the output has no reasoning."""
    opening: tuple[int, ...] = ()
    """The tokens that begin a block, at the beginning of the output or after white space. Empty: the output begins
    inside one."""
    repeats: bool = False
    """True if a block may begin anywhere in the output, and further ones after it."""


class OutputParser(ABC):
    """Parses one output as it is generated; ``for_functions`` makes an instance for each output.

    A class can also be instantiated without arguments, for outputs whose functions are unknown.

    Every text is legal: text that does not follow the format is ``Text``. The events do not depend on how the output
    was divided, once they are ``joined``. Parsing takes time in proportion to the output's length.
    """

    settings: ClassVar[Any] = None
    """The component's settings, if it declares any."""
    needs_special_tokens: ClassVar[bool] = False
    """True if the format is marked with special tokens of the model, which are otherwise left out of the text."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """Return the events that ``text`` completes; text that may become a marker is held back."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """Return the remaining events. The last call."""

    @classmethod
    def for_functions(cls, functions: Mapping[str, Mapping[str, Any]]) -> OutputParser:
        """Return a parser of one output in which ``functions`` may be called: name -> JSON schema of the arguments.

        Formats whose arguments have no types take them from the schemas. The schemas are the caller's and may be
        invalid; an output may also call other functions. A parser of reasoning gets no functions where calls are
        constrained and therefore only follow the reasoning.
        """
        return cls()

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if a model with this chat template writes this format; ``auto`` selects by it."""
        return False

    @classmethod
    def structure(
        cls, functions: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool
    ) -> Constraint | None:
        """Return a constraint under which every call names one of ``functions`` and has its arguments.

        Args:
            functions: name -> JSON schema of the arguments.
            required: the output is one or several calls and nothing else; otherwise text may surround calls.
            parallel: several calls are allowed.

        Returns ``None`` if the format cannot be enforced. Raises ``ConstraintError`` if one of the functions cannot be
        enforced.
        """
        return None

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the markers of reasoning in outputs after a prompt that ends with ``prompt``; constraints do not apply
        to it.

        ``calls``: a constraint from ``structure`` of the same format applies after the reasoning. ``None``: there is no
        reasoning after such a prompt, or the format cannot tell; constraints apply from the first token on.
        """
        return None


def joined(events: Iterable[Event]) -> list[Event]:
    """Merge neighbouring events of one kind (and of one call) into one."""
    merged: list[Event] = []
    parts: list[str] = []

    def close() -> None:
        if parts and isinstance(last := merged[-1], Text | Reasoning | CallArguments):
            merged[-1] = replace(last, text="".join(parts))
        parts.clear()

    for event in events:
        if not isinstance(event, Text | Reasoning | CallArguments):
            close()
            merged.append(event)
            continue
        if not parts or not _continues(event, merged[-1]):
            close()
            merged.append(event)
        parts.append(event.text)
    close()
    return merged


def _continues(event: Event, last: Event) -> bool:
    if isinstance(event, CallArguments) and isinstance(last, CallArguments):
        return event.index == last.index
    return type(event) is type(last)
