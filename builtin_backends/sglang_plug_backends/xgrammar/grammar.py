"""The xgrammar backend: compiles constraints and tracks the state of one output."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import lru_cache

import torch
import xgrammar
from torch import Tensor

from sglang_plug import Constraint, ConstraintError, Grammar, GrammarBackend, Vocabulary
from sglang_plug_backends.grammars.ebnf.characters import literal
from sglang_plug_backends.grammars.ebnf.regex import regex_to_ebnf
from sglang_plug_backends.grammars.json_schema.schema import parse, schema_to_ebnf
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.tags import named_tokens, read_tag
from sglang_plug_backends.grammars.text_tokens import mask_of, text_mask

from .ebnf import checked_ebnf
from .forced_text import forces_only_short_text, tag_forces_only_short_text
from .repetitions import with_recursion
from .serialization import QUICK, Portable, memory_of
from .settings import XGrammarSettings
from .tags import prepare_tag

MAX_CHOICES = 4096
NO_TEXT = b"\xff"
MAX_SHOWN = 400
"""Maximum characters of the compiler's message that are passed on."""
LOCATION = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""Source location of the library in its messages."""


class XGrammarBackend(GrammarBackend):
    """Grammar backend that converts every constraint to EBNF, which xgrammar compiles to a pushdown automaton."""

    def __init__(self, vocabulary: Vocabulary, settings: XGrammarSettings) -> None:
        super().__init__(vocabulary, settings)
        self._settings = settings
        self._tokens = xgrammar.TokenizerInfo(
            _pieces(vocabulary), xgrammar.VocabType.RAW, vocab_size=vocabulary.size, stop_token_ids=[]
        )
        self._text = text_mask(vocabulary)
        self._prepared = lru_cache(maxsize=1)(self._prepare)
        """``_prepare``, once for ``refuses`` and ``compile``, which the server calls in turn."""
        self._compilers: dict[int, xgrammar.GrammarCompiler] = {}

    def refuses(self, constraint: Constraint) -> str | None:
        """Return the keyword or the part of an expression that cannot be enforced."""
        try:
            self._prepared(constraint)
        except Refusal as error:
            return str(error)
        return None

    def compile(self, constraint: Constraint) -> bytes:
        """Compile; quick grammars are stored as source, others as xgrammar's own serialisation."""
        try:
            prepared = self._prepared(constraint)
            tag = constraint.kind == "structural_tag"
            source, forces = (
                (prepared, tag_forces_only_short_text(prepared))
                if tag
                else (with_recursion(prepared), forces_only_short_text(prepared))
            )
            computed = time.process_time()
            compiled = self._compile(constraint, source, threads=self._settings.threads)
            quick = time.process_time() - computed <= QUICK
        except Refusal as error:
            raise ConstraintError(str(error)) from None
        except (RuntimeError, ValueError) as error:
            message = LOCATION.sub("", str(error).strip()).partition("\n")[0]
            raise ConstraintError(message[:MAX_SHOWN]) from None
        memory = compiled.memory_size_bytes
        if quick:
            return Portable("source", source, forces, memory).encode()
        return Portable("json", compiled.serialize_json(), forces, memory).encode()

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """Load a compiled grammar, which outputs share."""
        portable = Portable.decode(compiled)
        if portable.form == "source":
            shared = self._compile(constraint, portable.text, threads=1)
        else:
            shared = xgrammar.CompiledGrammar.deserialize_json(portable.text, self._tokens)
        allowed = self._text
        if constraint.kind == "structural_tag":
            named = named_tokens(read_tag(constraint.source), self.vocabulary.special)
            allowed = allowed | mask_of(named, self.vocabulary.size)
        return lambda: _Output(xgrammar.GrammarMatcher(shared), allowed, portable.forces)

    def memory(self, compiled: bytes) -> int:
        """Return xgrammar's count of the compiled grammar's bytes."""
        return memory_of(compiled)

    def _compile(self, constraint: Constraint, source: str, *, threads: int) -> xgrammar.CompiledGrammar:
        """Compile with xgrammar. Raises ``RuntimeError`` and ``ValueError``."""
        if threads not in self._compilers:
            self._compilers[threads] = xgrammar.GrammarCompiler(self._tokens, max_threads=threads, cache_enabled=False)
        compiler = self._compilers[threads]
        return (
            compiler.compile_structural_tag(source)
            if constraint.kind == "structural_tag"
            else compiler.compile_grammar(source)
        )

    def _prepare(self, constraint: Constraint) -> str:
        """Return xgrammar's input: a structural tag, or EBNF for every other kind. Raises ``Refusal``."""
        source = constraint.source
        match constraint.kind:
            case "json_schema":
                return schema_to_ebnf(source, self._settings.whitespace)
            case "json_object":
                return schema_to_ebnf('{"type": "object"}', self._settings.whitespace)
            case "regex":
                return f"root ::= {regex_to_ebnf(source)}\n"
            case "ebnf":
                return checked_ebnf(source)
            case "choice":
                return f"root ::= {_choices(source)}\n"
            case "structural_tag":
                return prepare_tag(source, self._settings.whitespace, self.vocabulary.special)


class _Output(Grammar):
    """State of one output. The matcher knows no stop tokens, so all tokens that it allows are content."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, allowed: Tensor, forces: bool) -> None:
        self._matcher, self._allowed, self._forces = matcher, allowed.numpy(), forces
        self._next: Tensor | None = None

    def fill(self, mask: Tensor, row: int) -> None:
        if self._next is None:
            self._matcher.fill_next_token_bitmask(mask, row)
            words = mask[row].numpy()
            words &= self._allowed
        else:
            mask[row] = self._next

    def accept(self, token: int) -> bool:
        if not 0 <= token < 32 * len(self._allowed) or not int(self._allowed[token // 32]) >> token % 32 & 1:
            return False
        if not self._matcher.accept_token(token):
            return False
        self._next = None
        return True

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        self._next = None

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    @property
    def ended(self) -> bool:
        if not self.may_end:
            return False
        if self._next is None:
            row = torch.zeros(1, len(self._allowed), dtype=torch.int32)
            self.fill(row, 0)
            self._next = row[0]
        return not self._next.any()

    def forced(self) -> bytes:
        if not self._forces:
            return b""
        try:
            return self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError as error:  # it ends within a character
            return bytes(error.object)


def _pieces(vocabulary: Vocabulary) -> list[bytes]:
    """Return the bytes of each token; special ones get bytes that no text has, as xgrammar forbids empty tokens."""
    pieces = list(vocabulary.pieces)
    for token in vocabulary.special.values():
        pieces[token] = NO_TEXT
    return pieces


def _choices(source: str) -> str:
    choices = parse(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise Refusal("a choice must be a list of texts")
    if len(choices) > MAX_CHOICES:
        raise Refusal(f"a choice has at most {MAX_CHOICES} texts, got {len(choices)}")
    try:
        json.dumps(choices, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal("a choice holds half a surrogate pair") from None
    return " | ".join(literal(item) for item in dict.fromkeys(choices))
