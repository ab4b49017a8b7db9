"""The grammar contract: what an output must look like, and who decides which token may come next.

A backend is built twice from the same vocabulary: in a process of its own, which compiles and which may be killed
when a constraint takes too long, and in the engine, which loads what was compiled and fills masks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from torch import Tensor

ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice"]
CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
MASK_BITS = 32
"""Tokens in one word of a mask."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an output must look like. Crosses the process line; equal constraints are compiled once."""

    kind: ConstraintKind
    source: str = ""
    """JSON text of the schema, tag or list of choices; the expression; the grammar; empty for ``json_object``."""
    backend: str = ""
    """Name of the grammar backend that must enforce it; empty: the first one that fully does."""


@dataclass(frozen=True, slots=True)
class Preamble:
    """What may stand in an output before the part that a constraint is about, in tokens: reasoning, above all."""

    ends: tuple[tuple[int, ...], ...]
    """Runs of tokens; the first to come ends it."""
    opening: tuple[int, ...] = ()
    """What an output with a preamble begins with; one without is constrained from its first token on. Empty: every
    output begins inside the preamble."""


class ConstraintError(ValueError):
    """The constraint cannot be compiled; the message is meant for the caller who sent it.

    ``lasting``: the next attempt would end the same way.
    """

    def __init__(self, message: str, *, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the tokens of a model stand for."""

    pieces: Sequence[bytes]
    """Bytes of each token; empty for special tokens and for ids that no text has. No text allows those."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end an output."""
    special: Mapping[str, int] = field(default_factory=dict)
    """Special tokens by name, for constraints that name one."""
    encode: Callable[[str], Sequence[int]] | None = None
    """Cuts a text into tokens as the model's tokenizer does; ``None`` where nobody needs it."""

    @property
    def size(self) -> int:
        """Number of token ids, which is the width of the model's logits."""
        return len(self.pieces)

    @property
    def words(self) -> int:
        """Words in a row of a mask."""
        return -(-len(self.pieces) // MASK_BITS)


class Grammar(ABC):
    """How far one output has come. Used by one thread at a time.

    It is asked in a thread, and given up when it takes seconds. Once it has filled a mask, and as long as it always
    answers within a millisecond, the engine asks it itself, and waits. Python that then takes seconds is interrupted
    by a ``BaseException``; a library's code that does not come back ends the engine.
    """

    @abstractmethod
    def fill(self, mask: Tensor, row: int) -> None:
        """Set ``mask[row]`` to the tokens that may come next.

        ``mask`` is int32 ``[rows, words]`` on the host; token ``i`` is bit ``i % 32`` of word ``i // 32``. The row
        holds anything before. Stop tokens are not content: the engine adds those where ``may_end``.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance by ``token``. False, and nothing changes, if it is not allowed."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """True if the output so far satisfies the constraint."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if the output satisfies the constraint and no token may follow."""

    def forced(self) -> bytes:
        """What every output goes on with from here, whatever way of cutting it into tokens: never more, maybe less.

        May end within a character. Nothing may end before or within it. The engine appends its tokens without asking
        the model. A caller's grammar may force text without end: then tell less, or nothing. By default empty: the
        model writes everything.
        """
        return b""


class GrammarBackend(ABC):
    """Compiles constraints and keeps track of outputs.

    Args:
        vocabulary: of the model.
        settings: the component's settings, ``None`` if its spec names none.

    Raises ``ConfigError`` if it cannot work with this vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, settings: Any) -> None:
        self.vocabulary, self.settings = vocabulary, settings

    @abstractmethod
    def refuses(self, constraint: Constraint) -> str | None:
        """Why the constraint cannot be enforced in full: what stands where. ``None`` if it can.

        A constraint that is enforced in part only must be refused.
        """

    @abstractmethod
    def compile(self, constraint: Constraint) -> bytes:
        """The constraint in a form that ``load`` takes in another process. Raises ``ConstraintError``.

        Runs in a process of its own that is killed when it takes too long or needs too much memory.
        """

    @abstractmethod
    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """What makes the grammar of one output, from what ``compile`` returned. Called once for each constraint."""
