"""A grammar compiler without a process, for tests that are not about the process."""

from __future__ import annotations

from collections.abc import Callable

from sglang_plug import Constraint, ConstraintError
from sglang_plug.contracts.text.grammar import GrammarBackend
from sglang_plug_backends.structured_outputs.compiler import GrammarSources
from sglang_plug_backends.structured_outputs.grammar_worker import _compile


class InProcessCompiler:
    """A stand-in for ``BackendCompiler``, whose process takes seconds to import libraries that are already imported
    here."""

    def __init__(self, sources: GrammarSources) -> None:
        self._sources = sources

    def start(self) -> GrammarBackend:
        """Return the grammar backends, which also compile."""
        return self._sources.backends

    def helper(self) -> InProcessCompiler:
        """Return another compiler with the same backends."""
        return InProcessCompiler(self._sources)

    def compile(self, constraint: Constraint, is_wanted: Callable[[], bool]) -> bytes:
        """Compile a constraint at once, even if it is not wanted, and raise the errors that the process would
        return."""
        answer = _compile(self._sources.backends, constraint)
        if answer.error is not None:
            raise ConstraintError(answer.error)
        return answer.data

    def interrupt(self) -> None:
        """Do nothing, because ``compile`` has returned already."""

    def close(self) -> None:
        """Do nothing, because there is no process to end."""
