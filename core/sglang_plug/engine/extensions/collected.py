"""Collecting the methods that step extensions override."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from sglang_plug.config import ConfigError
from sglang_plug.contracts.extension.base import StepExtension
from sglang_plug.contracts.extension.phases import PHASES
from sglang_plug.plugins.extension_methods import overrides

from .names import ExtensionNames

P = ParamSpec("P")
R = TypeVar("R")
Phase = TypeVar("Phase")


class CollectedExtensions:
    """The extensions of an engine in their order, from which the methods of each phase are collected.

    Args:
        extensions: by name.
        names: the extensions as errors name them.
    """

    def __init__(self, extensions: Mapping[str, StepExtension], names: ExtensionNames) -> None:
        self._extensions = extensions
        self._names = names

    def methods(self, method: Callable[Concatenate[Any, P], R]) -> tuple[Callable[P, R], ...]:
        """Return the bound methods that override ``method`` of a phase, such as ``PlanningPhase.plan``."""
        return tuple(self.methods_by_name(method).values())

    def methods_by_name(self, method: Callable[Concatenate[Any, P], R]) -> dict[str, Callable[P, R]]:
        """Return the bound methods that override ``method`` of a phase, by the name of the extension."""
        base, name = _declaring_class(method), method.__name__
        return {
            key: getattr(extension, name)
            for key, extension in self._extensions.items()
            if overrides(type(extension), base, name)
        }

    def objects(self, phase: type[Phase]) -> tuple[Phase, ...]:
        """Return the extensions with ``phase``."""
        return tuple(self.objects_by_name(phase).values())

    def objects_by_name(self, phase: type[Phase]) -> dict[str, Phase]:
        """Return the extensions with ``phase``, by name."""
        return {name: extension for name, extension in self._extensions.items() if isinstance(extension, phase)}

    def only_object(self, phase: type[Phase], default: Phase, action: str) -> Phase:
        """Return the extension with ``phase``, or ``default`` if none has it.

        Raises ``ConfigError`` if several have it; ``action`` says what they do.
        """
        having = self.objects(phase)
        if len(having) > 1:
            raise ConfigError(
                f"{self._names.of_all(having)} {action}; keep one of them, and block the others with --block-plugin "
                "step-extension:NAME"
            )
        return having[0] if having else default


def _declaring_class(method: Callable[..., Any]) -> type:
    """Return ``StepExtension`` or the phase that declares ``method``.

    Raises ``ValueError`` unless exactly one class declares a method of this name: an extension with two phases could
    not implement both methods.
    """
    named = [base for base in (StepExtension, *PHASES) if method.__name__ in vars(base)]
    if len(named) != 1 or vars(named[0])[method.__name__] is not method:
        raise ValueError(f"{method.__qualname__} is not a method of exactly one phase of step extensions: {named}")
    return named[0]
