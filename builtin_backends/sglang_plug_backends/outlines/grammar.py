"""The outlines backend: compiles constraints to state tables and tracks the state of one output.

outlines-core takes a text that matches for finished: of ``a|ab`` it allows ``a`` only, and it may forbid what is no
match after what was one. It also builds the automaton that looks for a match anywhere, which can be exponentially
larger than the one that starts where the text does. So every expression starts and ends with a mark that no text holds:
nothing matches too early, or from the middle, and an output may end where the mark may follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import outlines_core
import torch
from torch import Tensor

from sglang_plug import Constraint, ConstraintError, Grammar, GrammarBackend, Vocabulary
from sglang_plug_backends.grammars.ebnf.regex import regex_to_ebnf
from sglang_plug_backends.grammars.ebnf.to_regex import rules_to_regex
from sglang_plug_backends.grammars.ebnf.tree import (
    EbnfError,
    Node,
    OneOf,
    Parts,
    Rules,
    Text,
    mapped,
    read_choices,
    read_ebnf,
)
from sglang_plug_backends.grammars.json_schema.schema import schema_to_ebnf
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.text_tokens import text_mask

from .bounded_json import with_bounded_values
from .settings import OutlinesSettings

ANY_OBJECT = '{"type": "object"}'
MARK = "\0"
"""End mark of one byte, so that no token contains a part of it."""
MAX_TOKENS = 1 << 31
"""Maximum tokens of one output, all of which may be rolled back."""
MAX_FORCED = 512
"""Maximum forced bytes per query."""


class OutlinesBackend(GrammarBackend):
    """Grammar backend that converts every constraint to a regular expression and compiles that to a token table."""

    def __init__(self, vocabulary: Vocabulary, settings: OutlinesSettings) -> None:
        super().__init__(vocabulary, settings)
        self._settings = settings
        self._content = text_mask(vocabulary)
        self._regex = lru_cache(maxsize=1)(self._make_regex)
        """``_make_regex``, once for ``refuses`` and ``compile``, which the server calls in turn."""
        self._tokens: outlines_core.Vocabulary | None = None
        self._steps: list[int] | None = None

    def refuses(self, constraint: Constraint) -> str | None:
        """Return the keyword, recursion or part of an expression that cannot be enforced."""
        try:
            self._regex(constraint)
        except ConstraintError as error:
            return str(error)
        return None

    def compile(self, constraint: Constraint) -> bytes:
        """Compile to outlines-core's binary index, since rebuilding it would take as long as compiling."""
        expression = self._regex(constraint)
        if self._tokens is None:  # the loading process needs no compiler
            self._tokens = _tokens(self.vocabulary)
        try:
            index = outlines_core.Index(expression, self._tokens)
        except (RuntimeError, ValueError) as error:
            raise ConstraintError(f"the {constraint.kind} cannot be compiled: {str(error)[:400]}") from None
        data = index.__reduce__()[1][0]
        return bytes(data)

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """Load an index that outputs share."""
        index = outlines_core.Index.from_binary(compiled)
        if self._steps is None:
            self._steps = _byte_tokens(self.vocabulary)
        forced = _Forced(index, self._steps, self.vocabulary.size)
        return lambda: _Output(index, forced, self._content, self.vocabulary.size)

    def _make_regex(self, constraint: Constraint) -> str:
        try:
            rules = {name: mapped(body, _without_mark) for name, body in self._rules(constraint).items()}
            return rules_to_regex({**rules, "root": Parts((Text(MARK), rules["root"], Text(MARK)))})
        except (Refusal, EbnfError) as error:
            raise ConstraintError(str(error)) from None

    def _rules(self, constraint: Constraint) -> Rules:
        match constraint.kind:
            case "json_schema" | "json_object":
                source = constraint.source if constraint.kind == "json_schema" else ANY_OBJECT
                rules = read_ebnf(schema_to_ebnf(source, self._settings.whitespace))
                return with_bounded_values(rules, max(self._settings.any_depth, 0))
            case "regex":
                return read_ebnf(f"root ::= {regex_to_ebnf(constraint.source)}")
            case "choice":
                return {"root": read_choices(constraint.source)}
        raise ConstraintError(f"a {constraint.kind} cannot be enforced")


def _tokens(vocabulary: Vocabulary) -> outlines_core.Vocabulary:
    """Return the vocabulary with two extra tokens: the mark, and the end token that outlines-core requires."""
    ids: dict[bytes, list[int]] = {}
    for token, piece in enumerate(vocabulary.pieces):
        if piece and MARK.encode() not in piece:
            ids.setdefault(piece, []).append(token)
    ids[MARK.encode()] = [vocabulary.size]
    return outlines_core.Vocabulary(vocabulary.size + 1, ids)


def _byte_tokens(vocabulary: Vocabulary) -> list[int]:
    """Return the token of each byte that a text may contain; empty if one has none."""
    results = {piece: token for token, piece in enumerate(vocabulary.pieces) if len(piece) == 1}
    single_bytes = [bytes([octet]) for octet in range(256) if octet != ord(MARK)]
    return [results[octet] for octet in single_bytes] if all(octet in results for octet in single_bytes) else []


def _without_mark(node: Node) -> Node:
    """Exclude the mark from the characters."""
    mark = ord(MARK)
    if isinstance(node, Text) and MARK in node.text:
        raise EbnfError(f"the character U+{mark:04X} cannot be written")
    if not isinstance(node, OneOf):
        return node
    if node.negated:
        return OneOf((*node.ranges, (mark, mark)), negated=True)
    ranges = tuple((max(first, mark + 1), last) for first, last in node.ranges if last > mark)
    if not ranges:
        raise EbnfError(f"the character U+{mark:04X} cannot be written")
    return OneOf(ranges)


class _Forced:
    """Forced bytes of each table state: as long as a single byte leads on and the end is not allowed."""

    def __init__(self, index: outlines_core.Index, steps: list[int], end: int) -> None:
        self._index, self._steps, self._end = index, steps, end
        self._known: dict[int, bytes] = {}

    def after(self, state: int) -> bytes:
        """Return at most ``MAX_FORCED`` forced bytes."""
        if state not in self._known:
            self._known[state] = self._forced_bytes(state)
        return self._known[state]

    def _forced_bytes(self, state: int) -> bytes:
        result = bytearray()
        while len(result) < MAX_FORCED:
            step = self._only_step(state)
            if step is None:
                break
            octet, state = step
            result.append(octet)
        return bytes(result)

    def _only_step(self, state: int) -> tuple[int, int] | None:
        """Return the only possible byte and the state after it."""
        if self._index.get_next_state(state, self._end) is not None:
            return None
        only: tuple[int, int] | None = None
        for octet, token in enumerate(self._steps, start=ord(MARK) + 1):
            after = self._index.get_next_state(state, token)
            if after is None:
                continue
            if only is not None:
                return None
            only = octet, after
        return only


class _Output(Grammar):
    """State of one output. The guide has consumed the first mark and may roll back to it."""

    def __init__(self, index: outlines_core.Index, forced: _Forced, content: Tensor, size: int) -> None:
        self._index, self._forced, self._content, self._size = index, forced, content, size
        self._guide = outlines_core.Guide(index, MAX_TOKENS)
        self._guide.advance(size, return_tokens=False)
        self._count = 0
        self._next: Tensor | None = None

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = self._allowed()

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._size or not self._leads_on(token):
            return False
        self._guide.advance(token, return_tokens=False)
        self._count += 1
        self._next = None
        return True

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self._count:
            raise ValueError(f"cannot take back {count} of {self._count} tokens")
        self._guide.rollback_state(count)
        self._count -= count
        self._next = None

    @property
    def may_end(self) -> bool:
        return self._leads_on(self._size)

    @property
    def ended(self) -> bool:
        return self.may_end and not bool(self._allowed().any())

    def forced(self) -> bytes:
        return self._forced.after(self._guide.get_state())

    def _leads_on(self, token: int) -> bool:
        return self._index.get_next_state(self._guide.get_state(), token) is not None

    def _allowed(self) -> Tensor:
        if self._next is None:
            result = torch.zeros(-(-(self._size + 2) // 32), dtype=torch.int32)
            self._guide.write_mask_into(result.data_ptr(), result.numel(), result.element_size())
            self._next = result[: len(self._content)] & self._content
        return self._next
