"""The parser contract: what a model wrote, told apart into text, reasoning and calls of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from .grammar import Constraint


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a function begins; ``index`` counts the calls of one output from 0."""

    index: int
    name: str
    id: str | None = None
    """What the model called the call, if it did."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is over. Its arguments are a whole JSON object, unless the output broke off or was malformed."""

    index: int


Event = Text | Reasoning | CallStart | CallArguments | CallEnd


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """How outputs tell reasoning from what comes after it: what a constraint is about begins behind one of ``ends``."""

    ends: tuple[str, ...]
    opening: str = ""
    """What begins reasoning; without it, an output has none. Empty: every output begins inside it."""
    opened: str = ""
    """What began it, if that is the end of the prompt already."""


class OutputParser(ABC):
    """Reads one output as it comes; made without arguments for each.

    Every text is legal: what does not keep the format is ``Text``. However an output is cut into pieces, the events
    are the same once ``joined``, and reading takes time in proportion to its length.
    """

    needs_special_tokens: ClassVar[bool] = False
    """True if the format is marked with special tokens of the model, which texts leave out otherwise."""

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """What has become certain with ``text``; what may yet become a marker is held back."""

    @abstractmethod
    def finish(self) -> list[Event]:
        """The rest. The last call."""

    @classmethod
    def suits(cls, template: str) -> bool:
        """True if a model with this chat template writes this format; decides what ``auto`` chooses."""
        return False

    @classmethod
    def structure(
        cls, functions: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool
    ) -> Constraint | None:
        """What outputs must look like so that every call in them names one of ``functions`` and has its arguments.

        Args:
            functions: name -> JSON schema of the arguments.
            required: the output is a call, or several, and nothing else; otherwise text may stand around calls.
            parallel: several calls are allowed.

        Returns ``None`` if the format cannot be enforced. Raises ``ConstraintError`` if it is a function that cannot.
        """
        return None

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Where reasoning stands in outputs after a prompt that ends with ``prompt``: constraints leave it alone.

        ``calls``: what comes after it is what ``structure`` of the same format describes. ``None``: there is no
        reasoning after such a prompt, or the format cannot tell; constraints hold from the first token on.
        """
        return None


def joined(events: Iterable[Event]) -> list[Event]:
    """``events`` with neighbours of one kind (and of one call) made into one."""
    found: list[Event] = []
    parts: list[str] = []

    def close() -> None:
        if parts and isinstance(last := found[-1], Text | Reasoning | CallArguments):
            found[-1] = replace(last, text="".join(parts))
        parts.clear()

    for event in events:
        if not isinstance(event, Text | Reasoning | CallArguments):
            close()
            found.append(event)
            continue
        if not parts or not _continues(event, found[-1]):
            close()
            found.append(event)
        parts.append(event.text)
    close()
    return found


def _continues(event: Event, last: Event) -> bool:
    if isinstance(event, CallArguments) and isinstance(last, CallArguments):
        return event.index == last.index
    return type(event) is type(last)
