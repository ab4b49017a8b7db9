from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from sglang_plug import Constraint, ConstraintError, Grammar, GrammarBackend
from sglang_plug.testing import check_grammar_backend
from tests.core.text_grammar import OneOfTexts


class Output(OneOfTexts):
    """A correct output; each broken output below changes one thing."""

    def __init__(self, backend: Honest, texts: list[bytes]) -> None:
        super().__init__(backend.vocabulary.pieces, texts)
        self.backend = backend


class Honest(GrammarBackend):
    output: Callable[..., Grammar] = Output

    def refuses(self, constraint: Constraint) -> str | None:
        try:
            self.read(constraint)
        except ConstraintError as error:
            return str(error)
        return None

    def compile(self, constraint: Constraint) -> bytes:
        return json.dumps(self.read(constraint)).encode()

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        texts = [text.encode() for text in json.loads(compiled)]
        return lambda: type(self).output(self, texts)

    def read(self, constraint: Constraint) -> list[str]:
        try:
            texts: Any = json.loads(constraint.source)
        except ValueError as error:
            raise ConstraintError(str(error)) from None
        if not texts or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConstraintError("not a list of texts")
        return texts


def fails(backend: type[GrammarBackend], message: str, **more: Any) -> None:
    with pytest.raises(AssertionError, match=message):
        check_grammar_backend(backend, kinds=("choice",), **more)


def with_output(output: type[Output]) -> type[Honest]:
    return type(output.__name__, (Honest,), {"output": output})


def test_a_backend_that_keeps_the_contract_passes() -> None:
    check_grammar_backend(Honest, kinds=("choice",), must=("choice: one inside another",))


def test_a_case_that_must_be_enforced_and_a_name_that_is_none() -> None:
    class Picky(Honest):
        def read(self, constraint: Constraint) -> list[str]:
            texts = super().read(constraint)
            if len(texts) == 1:
                raise ConstraintError("one text only")
            return texts

    check_grammar_backend(Picky, kinds=("choice",))
    fails(Picky, "'choice: one only': it must not be refused: one text only", must=("choice: one only",))
    fails(Picky, "no such cases: choice: two", must=("choice: two",))


@pytest.mark.planted_bug("grammar")
def test_refusing_everything_is_not_enough() -> None:
    class Lazy(Honest):
        def read(self, constraint: Constraint) -> list[str]:
            raise ConstraintError("no")

    fails(Lazy, "refuses every choice")


MANY = Constraint("choice", json.dumps([f"choice {number}" for number in range(1001)]))


@pytest.mark.planted_bug("grammar")
@pytest.mark.parametrize("refusal", [None, "after compiling"])
def test_what_the_author_names_must_be_refused(refusal: str | None) -> None:
    class Limitless(Honest):
        def refuses(self, constraint: Constraint) -> str | None:
            return super().refuses(constraint) or (refusal if constraint is MANY else None)

    class Limited(Honest):
        def read(self, constraint: Constraint) -> list[str]:
            texts = super().read(constraint)
            if len(texts) > 1000:
                raise ConstraintError(f"{len(texts)} choices, and 1000 are allowed")
            return texts

    check_grammar_backend(Limited, kinds=("choice",), refused=[MANY])
    message = "must be refused" if refusal is None else "refuses.. says 'after compiling', but compile"
    fails(Limitless, f"Limitless fails choice: .* of {len(MANY.source)} characters: .*{message}", refused=[MANY])


@pytest.mark.planted_bug("grammar")
def test_what_cannot_be_read_must_be_refused() -> None:
    class Credulous(Honest):
        def read(self, constraint: Constraint) -> list[str]:
            actual: Any = json.loads(constraint.source or "[]")
            return actual if isinstance(actual, list) else [actual]

    fails(Credulous, r"broken, '.*raised|must be refused")


class AllowsSpecial(Output):
    def fill(self, mask: Tensor, row: int) -> None:
        super().fill(mask, row)
        mask[row, 0] |= 1


class KeepsOldBits(Output):
    def fill(self, mask: Tensor, row: int) -> None:
        before = mask[row].clone()
        super().fill(mask, row)
        mask[row] |= before


class FillsEveryRow(Output):
    def fill(self, mask: Tensor, row: int) -> None:
        for other_row in range(len(mask)):
            super().fill(mask, other_row)


class AcceptsAnything(Output):
    def accept(self, token: int) -> bool:
        return super().accept(token) or 0 <= token < len(self.pieces)


class AcceptsAndForgets(Output):
    def accept(self, token: int) -> bool:
        if token not in self.allowed():
            self.tokens.clear()
            return False
        return super().accept(token)


class EndsEarly(Output):
    @property
    def ended(self) -> bool:
        return self.may_end


class NeverEnds(Output):
    @property
    def ended(self) -> bool:
        return False


class MayAlwaysEnd(Output):
    @property
    def may_end(self) -> bool:
        return True


class MayNeverEnd(Output):
    @property
    def may_end(self) -> bool:
        return False


class TakesBackOne(Output):
    def rollback(self, count: int) -> None:
        super().rollback(min(count, 1))


class OneWayOnly(Output):
    """Allows only the longest token."""

    def allowed(self) -> list[int]:
        return sorted(super().allowed(), key=lambda token: len(self.pieces[token]))[-1:]


class ForgetsCharacters(Output):
    """Accepts any last byte of a text."""

    def allowed(self) -> list[int]:
        actual = super().allowed()
        if any(len(text) == len(self.generated) + 1 and text.startswith(self.generated) for text in self.texts):
            actual += [token for token, piece in enumerate(self.pieces) if len(piece) == 1 and token not in actual]
        return actual

    @property
    def may_end(self) -> bool:
        return any(len(self.generated) == len(text) and text.startswith(self.generated[:-1]) for text in self.texts)


class ForcesFirst(Output):
    """Forces the first matching text even if several match."""

    def forced(self) -> bytes:
        return next((text[len(self.generated) :] for text in self.texts if text.startswith(self.generated)), b"")


class ForcesTooMuch(Output):
    def forced(self) -> bytes:
        (remainder, *others) = {text[len(self.generated) :] for text in self.texts if text.startswith(self.generated)}
        return b"" if others or not remainder else remainder + b"!"


@pytest.mark.planted_bug("grammar")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (ForcesFirst, "is forced, (not|but the output may end)"),
        (ForcesTooMuch, "is forced, but not allowed"),
        (AllowsSpecial, "special token 0 is allowed"),
        (KeepsOldBits, "is allowed"),
        (FillsEveryRow, "a row that is not its own"),
        (AcceptsAnything, "is not allowed, but accepted"),
        (AcceptsAndForgets, "changed what is allowed"),
        (EndsEarly, "ended is True, may_end True"),
        (NeverEnds, "ended is False, may_end True"),
        (MayAlwaysEnd, "can be written"),
        (MayNeverEnd, "may not end"),
        (TakesBackOne, "taking back"),
        (OneWayOnly, "cannot be written|but not as"),
        (ForgetsCharacters, "may be written, as"),
    ],
)
def test_a_broken_output_is_found(output: type[Output], message: str) -> None:
    fails(with_output(output), f"{output.__name__} fails .*{message}")


@pytest.mark.planted_bug("grammar")
def test_outputs_must_not_share_what_they_have_written() -> None:
    class Shared(Honest):
        def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
            grammar = super().load(constraint, compiled)()
            return lambda: grammar

    fails(Shared, "cannot be written|one output changed another|at the start|can be written")


@pytest.mark.planted_bug("grammar")
def test_what_is_compiled_must_be_enough() -> None:
    class Remembers(Honest):
        def compile(self, constraint: Constraint) -> bytes:
            self.texts = self.read(constraint)
            return b"[]"

        def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
            return super().load(constraint, json.dumps(self.texts).encode())

    fails(Remembers, "raised AttributeError")


def test_a_refusal_holds_everywhere_and_says_why() -> None:
    class Half(Honest):
        def refuses(self, constraint: Constraint) -> str | None:
            return "no"

    class Mute(Honest):
        def refuses(self, constraint: Constraint) -> str | None:
            return " "

    class Fickle(Honest):
        def refuses(self, constraint: Constraint) -> str | None:
            self.calls = getattr(self, "calls", 0) + 1
            return super().refuses(constraint) or (None if self.calls == 1 else str(id(self)))

    fails(Half, "refuses.. says 'no', but compile.. does not")
    fails(Mute, "without a reason")
    fails(Fickle, "two instances")
