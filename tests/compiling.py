"""Grammars compiled by the process that runs the tests, where tests are about what comes of them."""

from __future__ import annotations

from collections.abc import Callable

from sglang_plug import Constraint, ConstraintError
from sglang_plug.contracts.text.grammar import GrammarBackend
from sglang_plug_backends.structured_outputs.compiler import GrammarSources
from sglang_plug_backends.structured_outputs.grammar_worker import _compile


class CompilerHere:
    """Stands for ``BackendCompiler``, whose process takes seconds to import what is imported here already."""

    def __init__(self, sources: GrammarSources) -> None:
        self._sources = sources

    def start(self) -> GrammarBackend:
        """The backends that also compile."""
        return self._sources.backends

    def helper(self) -> CompilerHere:
        """One more."""
        return CompilerHere(self._sources)

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """At once, wanted or not, with the words of the process."""
        answer = _compile(self._sources.backends, constraint)
        if answer.error is not None:
            raise ConstraintError(answer.error)
        return answer.data

    def interrupt(self) -> None:
        """Nothing takes long."""

    def close(self) -> None:
        """There is nothing to end."""
