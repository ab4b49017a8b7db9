"""The methods of a step extension that is tested: those that the engine calls, with the right parameters."""

from __future__ import annotations

from difflib import get_close_matches

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.extension.step_phases import GraphPhase, ModelPhase
from sglang_plug.contracts.model.kernels import TORCH, Kernels
from sglang_plug.engine.extensions.collected import overrides, uncalled_methods
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.plugins.attribution import signature_problems


def check_methods(extension: StepExtension) -> None:
    """Raise ``AssertionError`` naming a method that the engine would not call, or not as it is declared."""
    for phase in PHASES:
        uncalled = uncalled_methods(extension, phase)
        assert not uncalled, (
            f"{type(extension).__name__} has {', '.join(uncalled)} and is not a {phase.__name__}, so the engine never "
            "calls them"
        )
        for name, problem in signature_problems(extension, phase) if isinstance(extension, phase) else ():
            raise AssertionError(f"{type(extension).__name__}.{name}() {problem}")
        _check_spelling(extension, phase)
    if overrides(extension, ModelPhase, "context"):
        assert overrides(extension, GraphPhase, "graph_input"), (
            f"{type(extension).__name__} has context() and no graph_input(), so plain graphs would replay its steps"
        )
    for kernels in extension_points({"tested": extension}).forward.kernels:
        assert isinstance(kernels(TORCH), Kernels), "kernels() must return a kernel set"


def _check_spelling(extension: StepExtension, phase: type) -> None:
    """Check that no method is named almost like one of a phase that the extension has and does not implement."""
    if not isinstance(extension, phase):
        return
    missing = [name for name in vars(phase) if not name.startswith("_") and not overrides(extension, phase, name)]
    for name in (name for owner in type(extension).__mro__ if owner not in PHASES for name in vars(owner)):
        if name.startswith("_") or any(name in vars(other) for other in (StepExtension, *PHASES)):
            continue
        similar = get_close_matches(name, missing, n=1, cutoff=0.85)
        assert not similar, (
            f"{type(extension).__name__}.{name}() is never called: {phase.__name__} has no such method; "
            f"did you mean {similar[0]}()? A method for the extension itself needs another name"
        )
