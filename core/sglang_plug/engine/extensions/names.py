"""The names of step extensions in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglang_plug.contracts.extension.base import StepExtension


@dataclass(frozen=True, slots=True)
class ExtensionNames:
    """The step extensions of an engine, with the names that error messages give them."""

    labels: tuple[tuple[StepExtension, str], ...] = ()

    def of(self, part: object) -> str:
        """Return the name of the extension that ``part`` is, or is a method of."""
        owner = getattr(part, "__self__", part)
        unknown = f"the step extension {type(owner).__name__}"
        return next((label for extension, label in self.labels if extension is owner), unknown)

    def of_all(self, parts: Iterable[object]) -> str:
        """Return the names of several extensions, joined for a sentence."""
        return " and ".join(map(self.of, parts))
