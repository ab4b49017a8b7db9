"""A plugin of grammar backends whose masks allow tokens that their grammars then reject."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from sglang_plug import Constraint, Grammar, GrammarSpec, hookimpl
from sglang_plug_backends.grammars.text_tokens import text_mask
from sglang_plug_backends.xgrammar.grammar import XGrammarBackend


class WideBackend(XGrammarBackend):
    """A backend of xgrammar whose masks allow every text token."""

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        make, everything = super().load(constraint, compiled), text_mask(self.vocabulary)
        return lambda: WideGrammar(make(), everything)


class NeverBackend(WideBackend):
    """A backend like ``WideBackend``, whose grammars accept no token."""

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        make, everything = XGrammarBackend.load(self, constraint, compiled), text_mask(self.vocabulary)
        return lambda: NeverGrammar(make(), everything)


class WideGrammar(Grammar):
    def __init__(self, exact: Grammar, everything: Tensor) -> None:
        self.exact, self.everything = exact, everything

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = self.everything

    def accept(self, token: int) -> bool:
        return self.exact.accept(token)

    def rollback(self, count: int) -> None:
        self.exact.rollback(count)

    @property
    def may_end(self) -> bool:
        return self.exact.may_end

    @property
    def ended(self) -> bool:
        return False  # because its masks always allow further tokens

    def forced(self) -> bytes:
        return self.exact.forced()


class NeverGrammar(WideGrammar):
    def accept(self, token: int) -> bool:
        return False


@hookimpl
def register_grammar_backends() -> Iterator[GrammarSpec]:
    settings = "sglang_plug_backends.xgrammar.settings:XGrammarSettings"
    yield GrammarSpec(name="wide", target=f"{__name__}:WideBackend", settings=settings)
    yield GrammarSpec(name="never", target=f"{__name__}:NeverBackend", settings=settings)
