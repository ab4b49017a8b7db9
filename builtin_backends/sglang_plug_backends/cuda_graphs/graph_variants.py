"""Graphs of decode steps in which step extensions take part, besides the plain graphs.

A step extension gives each chunk a number (``GraphPhase.graph_input``). A step whose numbers are all 0 is plain.
Otherwise the extensions with other numbers are its *variant*, and each variant has graphs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from sglang_plug import ChunkView, GraphPhase

Graph = TypeVar("Graph")
Variant = tuple[int, ...]
"""Indices of extensions, ascending."""
PLAIN: Variant = ()


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of a step's chunks."""

    rows: tuple[list[int], ...] = ()
    """One number per chunk, for each extension."""
    variant: Variant = PLAIN


NO_NUMBERS = StepNumbers()


class GraphVariants(Generic[Graph]):
    """The graphs of all variants, by batch size.

    Args:
        extensions: those that take part in graphs.
    """

    def __init__(self, extensions: Ordered[GraphPhase] = ()) -> None:
        self.extensions = tuple(extensions)
        self.captured: dict[Variant, dict[int, Graph]] = {}
        self._versions: dict[Variant, list[int]] = {}
        self._failed: set[Variant] = set()

    def numbers(self, chunks: Ordered[ChunkView]) -> StepNumbers | None:
        """Return the numbers of ``chunks``; ``None`` if the step cannot be replayed."""
        if not self.extensions:
            return NO_NUMBERS
        rows: list[list[int]] = []
        for extension in self.extensions:
            inputs = [extension.graph_input(chunk) for chunk in chunks]
            known = [number for number in inputs if number is not None]
            if len(known) < len(inputs):
                return None
            rows.append(known)
        return StepNumbers(tuple(rows), tuple(index for index, row in enumerate(rows) if any(row)))

    def alone(self) -> Iterable[Variant]:
        """Return the variants of one extension each, which are captured at the start."""
        return [(index,) for index in range(len(self.extensions)) if (index,) not in self._failed]

    def get(self, variant: Variant, size: int, capture: Callable[[], None]) -> Graph | None:
        """Return the graph of ``variant``, which ``capture`` captures if there is no valid one; ``None``: it cannot."""
        if variant in self._failed:
            return None
        if self._versions.get(variant) != self._current(variant):
            self.captured.pop(variant, None)
        if size not in self.captured.get(variant, {}):
            capture()
        return self.captured.get(variant, {}).get(size)

    def put(self, variant: Variant, size: int, capture: Callable[[], Graph], numbers: Callable[[int], Tensor]) -> None:
        """Add the graph that ``capture`` returns when it is called inside the contexts of the extensions.

        ``numbers`` returns the static tensor of an extension. An extension that gives no context leaves the variant
        without graphs. Raises the error of a failed capture.
        """
        with ExitStack() as stack:
            for index in variant:
                context = self.extensions[index].capturing(numbers(index))
                if context is None:
                    self._failed.add(variant)
                    return
                stack.enter_context(context)
            if self._versions.get(variant) != (version := self._current(variant)):
                self.captured.pop(variant, None)
            self._versions[variant] = version
            self.captured.setdefault(variant, {})[size] = capture()

    def give_up(self, variant: Variant) -> None:
        """Run steps of ``variant`` without graphs from now on."""
        self._failed.add(variant)
        self.captured.pop(variant, None)

    def forget(self) -> None:
        """Drop all graphs; they are captured again when they are needed, those that could not be captured, too."""
        self.captured, self._versions, self._failed = {}, {}, set()

    def label(self, variant: Variant) -> str:
        """Return what the steps of ``variant`` have, for the log."""
        return " and ".join(self.extensions[index].graph_label for index in variant)

    def _current(self, variant: Variant) -> list[int]:
        return [self.extensions[index].graph_version for index in variant]
