"""All grammar backends behind one interface: each constraint goes to a backend that enforces it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TypeVar

from sglang_plug import (
    AUTO,
    Component,
    ConfigError,
    Constraint,
    ConstraintError,
    ConstraintKind,
    Facts,
    Grammar,
    GrammarBackend,
    GrammarSpec,
    PluginError,
    Plugins,
    Vocabulary,
    attributed,
)
from sglang_plug_backends.grammars.ebnf.tree import EbnfError, Text, read_choices

T = TypeVar("T")
SEPARATOR = b"\0"
"""Separates the name of a backend and the grammar that it compiled."""
METACHARACTER = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""Characters with a meaning in regular expressions."""


def choose_backend(plugins: Plugins, name: str, facts: Facts) -> Component:
    """Choose the backend of that name; for ``auto`` the plugins' choice, or else any that is installed.

    Raises ``PluginError``.
    """
    try:
        component = plugins.resolve("grammar", name, facts)
        if missing := component.unavailable():
            raise PluginError(f"{component} is unavailable: {missing}")
    except PluginError:
        others = _installed(plugins) if name == AUTO else []
        if not others:
            raise
        component = others[0]
    return component


def installed(plugins: Plugins, first: Component) -> tuple[Component, ...]:
    """Return the backends that can be used here, ``first`` first."""
    return (first, *(component for component in _installed(plugins) if component.spec.name != first.spec.name))


def _installed(plugins: Plugins) -> list[Component]:
    """Return the usable backends by name; a name that two plugins declare is left out."""
    components = plugins.all("grammar")
    names = [component.spec.name for component in components]
    return [
        component for component in components if names.count(component.spec.name) == 1 and not component.unavailable()
    ]


def forms(components: Sequence[Component]) -> frozenset[ConstraintKind]:
    """Return the kinds of constraints that any of these backends can enforce."""
    specs = [component.spec for component in components]
    kinds = frozenset(kind for spec in specs if isinstance(spec, GrammarSpec) for kind in spec.forms)
    return kinds | {"choice"} if "regex" in kinds else kinds


def as_enforced(constraint: Constraint, spec: GrammarSpec) -> Constraint:
    """Return the constraint in a kind that the backend of ``spec`` can enforce, if it has one.

    A choice becomes a regular expression for a backend that enforces those only. Raises ``ConstraintError`` if the
    source is no list of texts.
    """
    if constraint.kind != "choice" or "choice" in spec.forms or "regex" not in spec.forms:
        return constraint
    try:
        branches = read_choices(constraint.source).branches
    except EbnfError as error:
        raise ConstraintError(str(error)) from None
    texts = [branch.text for branch in branches if isinstance(branch, Text)]
    return replace(constraint, kind="regex", source="|".join(METACHARACTER.sub(r"\\\g<0>", text) for text in texts))


def _compiled(backend: GrammarBackend, constraint: Constraint) -> bytes:
    compiled = backend.compile(constraint)
    if not isinstance(compiled, bytes):
        raise TypeError(f"compile() must return bytes, not {type(compiled).__name__}")
    return compiled


class GrammarBackends(GrammarBackend):
    """Hands a constraint to the backend that it names, or to the first one that fully enforces it.

    Args:
        components: the backends that can be used here.
        order: names of the backends to try for a constraint that names none; the first is built at once.
        vocabulary: the model's vocabulary.

    Raises ``ConfigError`` if the first cannot be used.
    """

    def __init__(self, components: Sequence[Component], order: Sequence[str], vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary, None)
        self._components, self._order = {component.spec.name: component for component in components}, order
        self._built: dict[str, tuple[GrammarSpec, GrammarBackend]] = {}
        self._get(order[0])

    def refuses(self, constraint: Constraint) -> str | None:
        """Return why the named backend, or the first in order, cannot enforce the constraint; ``None`` if one can."""
        try:
            self._first(constraint, lambda backend, enforced: None)
        except ConstraintError as error:
            return str(error)
        return None

    def compile(self, constraint: Constraint) -> bytes:
        """Compile with the first suitable backend; the result is the backend's name and its compiled grammar."""
        name, compiled = self._first(constraint, _compiled)
        return name.encode() + SEPARATOR + compiled

    def load(self, constraint: Constraint, compiled: bytes) -> Callable[[], Grammar]:
        """Load a grammar with the backend that compiled it."""
        name, _, data = compiled.partition(SEPARATOR)
        spec, backend = self._get(name.decode())
        return backend.load(as_enforced(constraint, spec), data)

    def memory(self, compiled: bytes) -> int:
        """Return the size of a compiled grammar, as the backend that compiled it counts it."""
        name, _, data = compiled.partition(SEPARATOR)
        return self._get(name.decode())[1].memory(data)

    def _first(self, constraint: Constraint, use: Callable[[GrammarBackend, Constraint], T]) -> tuple[str, T]:
        """Return the name of the first backend that accepts the constraint, and the result of ``use``.

        ``use`` gets the constraint in a kind that the backend can enforce.
        """
        refusal: ConstraintError | None = None
        for name in self._candidates(constraint):
            try:
                spec, backend = self._get(name)
                enforced = as_enforced(constraint, spec)
                if enforced.kind not in spec.forms:
                    raise ConstraintError(
                        f"the grammar backend {name} cannot enforce this kind{self._able(constraint)}"
                    )
                if reason := self._call_backend(name, partial(backend.refuses, enforced)):
                    raise ConstraintError(reason)
                return name, self._call_backend(name, partial(use, backend, enforced))
            except (ConstraintError, ConfigError) as error:
                refusal = refusal or (error if isinstance(error, ConstraintError) else ConstraintError(str(error)))
        assert refusal is not None
        raise refusal

    def _call_backend(self, name: str, call: Callable[[], T]) -> T:
        """Call a backend; name it in errors that are not refusals."""
        try:
            return call()
        except (ConstraintError, ConfigError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise RuntimeError(f"{self._components[name]} failed: {type(error).__name__}: {error}") from error

    def _candidates(self, constraint: Constraint) -> Sequence[str]:
        return (constraint.backend,) if constraint.backend not in ("", AUTO) else self._order

    def _get(self, name: str) -> tuple[GrammarSpec, GrammarBackend]:
        if name not in self._built:
            component = self._components.get(name)
            if component is None:
                raise ConfigError(f"no grammar backend {name!r} is installed; {self._hint(name)}")
            kind: type[GrammarBackend] = component.load(GrammarBackend)
            settings = component.settings()
            with attributed(component, "to start"):
                backend = kind(self.vocabulary, settings)
            component.lifecycle.add(component, backend)
            self._built[name] = component.spec_as(GrammarSpec), backend
        return self._built[name]

    def _able(self, constraint: Constraint) -> str:
        """Return a clause for an error message with the backends that accept the kind."""
        able = [name for name, component in sorted(self._components.items()) if constraint.kind in forms([component])]
        return f"; installed that can: {', '.join(able)}" if able else ""

    def _hint(self, name: str) -> str:
        near = get_close_matches(name, self._components, 1)
        return f"did you mean {near[0]!r}?" if near else f"installed: {', '.join(sorted(self._components))}"
