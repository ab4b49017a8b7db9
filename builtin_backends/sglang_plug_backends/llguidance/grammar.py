"""The llguidance backend: compiles constraints to llguidance's grammars and tracks the state of one output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from torch import Tensor

from sglang_plug import Constraint, ConstraintError, Grammar, GrammarBackend, Vocabulary
from sglang_plug_backends.grammars.ebnf.regex import regex_to_ebnf
from sglang_plug_backends.grammars.ebnf.tree import EbnfError, read_choices, read_ebnf
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.tags import named_tokens, read_tag
from sglang_plug_backends.grammars.text_tokens import mask_of, text_mask

from .lark import rules_to_lark
from .schema import read_schema
from .settings import LLGuidanceSettings
from .tag_rules import tag_to_lark
from .tags import read_graph

HEAD = '%llguidance {"no_forcing": true}\n'
"""Grammar header that allows any tokenization of a text, not only the tokenizer's own."""
MAX_ITEMS = 500_000
"""Maximum parser items for one mask: about 25 ms."""
SPECIAL = b"\xff"
"""First byte of a special token in llguidance, which no text contains."""
LOCATION = re.compile(r"^at \d+\(\d+\): ")
"""Location in a generated grammar, which the caller never saw."""


class LLGuidanceBackend(GrammarBackend):
    """Grammar backend that leaves JSON schemas to llguidance and converts other constraints to grammars itself."""

    def __init__(self, vocabulary: Vocabulary, settings: LLGuidanceSettings) -> None:
        super().__init__(vocabulary, settings)
        self._settings = settings
        self._checked = lru_cache(maxsize=1)(self._check)
        """``_check``, once for ``refuses`` and ``compile``, which the server calls in turn."""
        self._tokens = LLTokenizer(
            TokenizerWrapper(_Tokens(vocabulary)), n_vocab=vocabulary.size + 1, eos_token=vocabulary.size
        )
        self._limits = LLParserLimits(step_max_items=MAX_ITEMS, verbose_errors=False)
        self._text = text_mask(vocabulary) & ~mask_of(
            (token for token, piece in enumerate(vocabulary.pieces) if SPECIAL in piece), vocabulary.size
        )

    def refuses(self, constraint: Constraint) -> str | None:
        """Return the reason why a constraint cannot be enforced, found here or reported by llguidance."""
        try:
            self._checked(constraint)
        except ConstraintError as error:
            return str(error)
        return None

    def compile(self, constraint: Constraint) -> bytes:
        """Compile to llguidance's own notation and check it."""
        return self._checked(constraint).encode()

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """Build the grammar once; each output gets a copy."""
        first, allowed = self._matcher(compiled.decode()), self._content(constraint)
        return lambda: _Output(first.deep_copy(), allowed)

    def _matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            first, *others = LOCATION.sub("", matcher.get_error().strip()).splitlines()
            message = " ".join((first, *(line for line in others if line.startswith("error: "))))
            raise ConstraintError(f"the constraint cannot be enforced: {message[:400]}")
        return matcher

    def _check(self, constraint: Constraint) -> str:
        """Return the grammar after llguidance has confirmed that it has an output. Raises ``ConstraintError``."""
        try:
            grammar = self._grammar(constraint)
        except (Refusal, EbnfError) as error:
            raise ConstraintError(str(error)) from None
        grammar = f"{HEAD}{grammar}"
        try:
            matcher = self._matcher(grammar)
        except ConstraintError:
            self._check_alone(constraint)
            raise
        if _Output(matcher, self._content(constraint)).is_stuck:
            raise ConstraintError("nothing satisfies the constraint")
        return grammar

    def _check_alone(self, constraint: Constraint) -> None:
        """Raise ``ConstraintError`` that names the schema if one schema of a structural tag alone is refused."""
        if constraint.kind != "structural_tag":
            return

        def check(schema: dict[str, Any]) -> None:
            try:
                self._matcher(f"{HEAD}{self._json(schema)}")
            except ConstraintError as error:
                raise Refusal(str(error)) from None

        try:
            read_graph(constraint.source, self._settings.whitespace, self.vocabulary.special, check)
        except Refusal as error:
            raise ConstraintError(str(error)) from None

    def _grammar(self, constraint: Constraint) -> str:
        match constraint.kind:
            case "json_schema":
                return self._json(read_schema(constraint.source))
            case "json_object":
                return self._json({"type": "object"})
            case "regex":
                return rules_to_lark(read_ebnf(f"root ::= {regex_to_ebnf(constraint.source)}"))
            case "ebnf":
                return rules_to_lark(read_ebnf(constraint.source))
            case "choice":
                return rules_to_lark({"root": read_choices(constraint.source)})
            case "structural_tag":
                graph = read_graph(constraint.source, self._settings.whitespace, self.vocabulary.special)
                return tag_to_lark(graph, self._json_value)
        raise ConstraintError(f"a {constraint.kind} cannot be enforced")

    def _content(self, constraint: Constraint) -> Tensor:
        """Build an int32 mask ``[words]`` of text tokens and the special ones that the constraint names."""
        if constraint.kind != "structural_tag":
            return self._text
        named = named_tokens(read_tag(constraint.source), self.vocabulary.special)
        return self._text | mask_of(named, self.vocabulary.size)

    def _json(self, schema: dict[str, Any]) -> str:
        return f"start: {self._json_value(schema)}\n"

    def _json_value(self, schema: dict[str, Any]) -> str:
        wide = self._settings.any_whitespace
        options = {
            "item_separator": "," if wide else ", ",
            "key_separator": ":" if wide else ": ",
            "whitespace_flexible": wide,
            "coerce_one_of": False,
            "lenient": False,
        }
        if wide:
            options["whitespace_pattern"] = f"[ \\n\\r\\t]{{0,{self._settings.max_whitespace}}}"
        return f"%json {json.dumps({**schema, 'x-guidance': options})}"


class _Tokens:
    """The vocabulary in llguidance's interface, with an end token that is none of the model's."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.pieces, b""]
        self.eos_token_id = vocabulary.size
        self.special_token_ids = [token for token, piece in enumerate(self.tokens) if not piece]
        for token in vocabulary.special.values():
            self.tokens[token] = f"<|{token}|>".encode()  # or llguidance would confuse them

    def __call__(self, text: str | bytes) -> list[int]:
        raise NotImplementedError("texts are never cut into tokens here")


class _Output(Grammar):
    """State of one output."""

    def __init__(self, matcher: LLMatcher, text: Tensor) -> None:
        self._matcher, self._text = matcher, text
        self._next: Tensor | None = None

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = self._allowed()

    def accept(self, token: int) -> bool:
        if not 0 <= token < len(self._text) * 32 or not int(self._text[token // 32]) >> token % 32 & 1:
            return False
        if not self._matcher.validate_tokens([token]):
            return False
        self._next = None
        return bool(self._matcher.consume_token(token))

    def rollback(self, count: int) -> None:
        self._next = None
        if not self._matcher.rollback(count):
            raise RuntimeError(f"llguidance: {self._matcher.get_error()[:400]}")

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def ended(self) -> bool:
        return self.may_end and (bool(self._matcher.is_stopped()) or not self._allowed().any())

    def forced(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes()).partition(SPECIAL)[0]

    @property
    def is_stuck(self) -> bool:
        """Return True if nothing may follow, not even the end."""
        return not self.may_end and not self._allowed().any()

    def _allowed(self) -> Tensor:
        if self._next is None:
            result = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.int32)
            if self._matcher.is_error() and not self._matcher.get_error().startswith("NoExtension"):
                raise RuntimeError(f"llguidance: {self._matcher.get_error()[:400]}")
            self._next = result[: len(self._text)] & self._text
        return self._next
