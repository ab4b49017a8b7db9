"""The methods of step extensions, as their classes show them: those that the engine cannot call, or never calls."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from difflib import get_close_matches

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.execution import ExecutionPhase
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.extension.step_phases import GraphPhase, ModelPhase, RankPhase

from .attribution import shown_parameters, signature_problems
from .component import Component

SIMILAR = 0.85
"""Similarity from which on a name counts as a misspelt one of a phase, as ``difflib`` measures it."""


def extension_classes(component: Component) -> list[type[StepExtension]]:
    """Return the classes of step extensions in the module of the component's target, without their base classes.

    The target is a function, which makes objects of these classes unless it imports others when it is called. Raises
    ``PluginError`` if the module cannot be imported.
    """
    component.load()
    module = importlib.import_module(component.spec.target.partition(":")[0])
    classes = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StepExtension) and value is not StepExtension
    }
    bases = {base for kind in classes for base in kind.__mro__[1:]}
    return sorted(classes - bases, key=lambda kind: kind.__qualname__)


def extension_problems(kind: type[StepExtension]) -> Iterator[str]:
    """Yield what is wrong with the methods of a class of step extensions, in sentences that name class and method."""
    for phase in PHASES:
        if not issubclass(kind, phase):
            if methods := uncalled_methods(kind, phase):
                yield (
                    f"{kind.__name__} has {', '.join(methods)} and does not inherit from {phase.__name__}, so the "
                    f"engine never calls them; add {phase.__name__} to its base classes"
                )
            continue
        for name, problem in signature_problems(kind, phase):
            yield f"{kind.__name__}.{name}() {problem}"
        yield from _misspelt(kind, phase)
    if (combination := combination_problem(kind)) is not None:
        yield f"{kind.__name__} {combination}"


def overrides(kind: type, phase: type, name: str) -> bool:
    """Report whether the class ``kind`` of an extension implements the method ``name`` of ``phase``."""
    return issubclass(kind, phase) and getattr(kind, name) is not getattr(phase, name)


def uncalled_methods(kind: type, phase: type) -> list[str]:
    """Return the methods of ``phase`` that a class implements without having the phase, so that none is called."""
    if issubclass(kind, phase):
        return []
    implemented = {name for owner in kind.__mro__ for name in vars(owner)}
    return sorted(name for name in _methods(phase) if name in implemented)


def combination_problem(kind: type) -> str | None:
    """Return why the methods of the class ``kind`` of an extension do not fit together, else ``None``."""
    if issubclass(kind, RankPhase) and issubclass(kind, ExecutionPhase):
        return "has both RankPhase and ExecutionPhase, whose commands would be ambiguous"
    if overrides(kind, ModelPhase, "context") and not overrides(kind, GraphPhase, "graph_input"):
        return "has context() and no graph_input(), so plain graphs would replay its steps: see sglang_plug.GraphPhase"
    return None


def _misspelt(kind: type, phase: type) -> Iterator[str]:
    """Yield a sentence about each method whose name is almost that of a method of ``phase`` that ``kind`` lacks."""
    missing = [name for name in _methods(phase) if not overrides(kind, phase, name)]
    known = {name for base in (StepExtension, *PHASES) for name in vars(base)}
    own = (name for owner in kind.__mro__ if owner not in PHASES for name in vars(owner))
    for name in own:
        if name.startswith("_") or name in known:
            continue
        for similar in get_close_matches(name, missing, n=1, cutoff=SIMILAR):
            yield (
                f"{kind.__name__}.{name}() is never called: {phase.__name__} has no such method; did you mean "
                f"{_written(phase, similar)}? A method for the extension itself needs another "
                "name"
            )


def _methods(phase: type) -> list[str]:
    return [name for name in vars(phase) if not name.startswith("_")]


def _written(phase: type, name: str) -> str:
    """Write a method of a phase with its parameters, and an attribute by its name."""
    stated = getattr(phase, name)
    return f"{name}{shown_parameters(stated)}" if inspect.isfunction(stated) else name
