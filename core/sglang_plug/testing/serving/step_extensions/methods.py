"""The methods of a step extension that is tested: those that the engine calls, with the right parameters."""

from __future__ import annotations

from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.contracts.model.kernels import TORCH, Kernels
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.plugins.attribution import signature_problems
from sglang_plug.plugins.extension_methods import extension_problems


def check_methods(extension: StepExtension) -> None:
    """Raise ``AssertionError`` naming a method that the engine would not call, or not as it is declared."""
    for problem in extension_problems(type(extension)):
        raise AssertionError(problem)
    for phase in PHASES:  # again for methods that the object has, and not its class
        for name, problem in signature_problems(extension, phase) if isinstance(extension, phase) else ():
            raise AssertionError(f"{type(extension).__name__}.{name}() {problem}")
    for kernels in extension_points({"tested": extension}).forward.kernels:
        assert isinstance(kernels(TORCH), Kernels), "kernels() must return a kernel set"
