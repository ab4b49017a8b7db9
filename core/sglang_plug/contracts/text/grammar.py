"""The grammar contract: compiling constraints on outputs, and masking the tokens that they do not allow.

A backend is built twice from the same vocabulary: in a compiler process, which is killed when a constraint takes too
long, and in the engine, which loads the compiled constraints and fills masks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

ConstraintKind = Literal["json_schema", "json_object", "regex", "ebnf", "structural_tag", "choice"]
"""The form in which a constraint is written; see ``Constraint.source``."""
CONSTRAINT_KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
SCHEMA_FIELD = "x-sglang-plug-field"
"""An annotation of a schema in a structural tag: the field of the request that it comes from, for error messages."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint on the form of an output. Sent to the engine process; equal constraints are compiled once."""

    kind: ConstraintKind
    source: str = ""
    """JSON text of the schema, tag or list of choices; the regular expression; the grammar; empty for
    ``json_object``."""
    backend: str = ""
    """Name of the grammar backend that must enforce it; empty: the first one that can enforce all of it."""


@dataclass(frozen=True, slots=True)
class ReasoningPrefix:
    """A part of an output before the constrained part, in tokens: reasoning, above all. The constraint is deferred."""

    ends: tuple[tuple[int, ...], ...]
    """Token sequences; the first one that occurs ends the prefix."""
    opening: tuple[int, ...] = ()
    """The tokens that begin a prefix; an output that begins otherwise is constrained from its first token on. Empty:
    every output begins inside the prefix."""


class ConstraintError(ValueError):
    """The constraint cannot be compiled; the message is for the caller who sent it.

    ``lasting``: another attempt would fail in the same way.
    """

    def __init__(self, message: str, *, lasting: bool = True) -> None:
        super().__init__(message)
        self.lasting = lasting


class Grammar(ABC):
    """The state of one output under a constraint. Used by one thread at a time.

    The engine calls it in a thread, and refuses a grammar that takes seconds. After the grammar has filled a mask, and
    as long as it always answers within a millisecond, the engine calls it directly and waits. Python code that then
    takes seconds is interrupted by a ``BaseException``; a native library that does not return ends the engine.
    """

    @abstractmethod
    def fill(self, mask: Tensor, row: int) -> None:
        """Set ``mask[row]`` to the tokens that may come next.

        ``mask`` is int32 ``[rows, words]`` on the host; token ``i`` is bit ``i % 32`` of word ``i // 32``. The previous
        contents of the row are arbitrary. Stop tokens are not content: the engine allows those if ``may_end``.
        """

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Advance by ``token``; return False, and change nothing, if the token is not allowed.

        This result decides. If it rejects a token that ``fill`` allowed, the engine samples another token, which costs
        a step: masks should be as strict as this method.
        """

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Undo the last ``count`` accepted tokens."""

    @property
    @abstractmethod
    def may_end(self) -> bool:
        """True if the output so far satisfies the constraint."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if the output satisfies the constraint and no token may follow."""

    def forced(self) -> bytes:
        """Return text that every output must continue with from here, whatever its tokenization: never more, maybe
        less.

        The text may end within a character. The output may not end before or within it. The engine appends its tokens
        without running the model (jump-forward). A caller's grammar may force endless text: then return a part of it,
        or nothing. By default empty: the model generates everything.
        """
        return b""


class GrammarBackend(ABC):
    """Compiles constraints and makes the grammars of outputs.

    Args:
        vocabulary: the model's.
        settings: the component's settings, ``None`` if its spec names none.

    Raises ``ConfigError`` if it cannot work with this vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, settings: Any) -> None:
        self.vocabulary, self.settings = vocabulary, settings

    @abstractmethod
    def refuses(self, constraint: Constraint) -> str | None:
        """Return the reason that the constraint cannot be enforced in full, and where; ``None`` if it can.

        A constraint that would be enforced only in part must be refused. Keywords of a schema that JSON Schema does not
        define are annotations, which are ignored.
        """

    @abstractmethod
    def compile(self, constraint: Constraint) -> bytes:
        """Return the constraint in a form that ``load`` accepts in another process. Raises ``ConstraintError``.

        Runs in a separate process that is killed when it takes too long or needs too much memory. If the process ends
        meanwhile, another process compiles the constraint once more.
        """

    @abstractmethod
    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """Return a factory of grammars, one for each output, from the result of ``compile``. Called once for each
        constraint.

        Runs in a thread of the engine. The engine is blocked meanwhile unless the code releases Python's global
        interpreter lock.
        """

    def memory(self, compiled: bytes) -> int:
        """Return the bytes that the engine needs to keep a loaded constraint. By default the length of ``compiled``."""
        return len(compiled)
