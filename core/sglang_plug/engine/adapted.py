"""Steps in which requests have adapters: whose rows are which, and the products that let adapters change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sglang_plug.adapters import Joinable, JoinedAdapters, LayerAdapter
from sglang_plug.kernels import LinearFunction
from sglang_plug.transfer import upload

from .adapter_tables import AdapterTables


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadedAdapter:
    """An adapter that requests may name."""

    name: str
    path: str
    salt: str
    """Separates its prefixes from all others' in the prefix cache; nobody outside of the engine knows it."""
    layers: Mapping[str, LayerAdapter]
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: int = 0
    """In the tables that captured steps read; 0: in none."""
    number: int = 0
    """What other ranks know it by."""


Joint = tuple[LoadedAdapter, ...]
Found = list[tuple[LoadedAdapter, LayerAdapter]]
"""What the step's adapters do in one layer."""


class AdaptedStep:
    """One step's adapters.

    Args:
        owners: the adapter of each sequence in the step, or ``None``.
        counts: their new tokens.
        device: where the model is.
    """

    def __init__(self, owners: Ordered[LoadedAdapter | None], counts: Ordered[int], device: torch.device) -> None:
        self.tokens = sum(counts)
        self.adapters: Joint = tuple(dict.fromkeys(one for one in owners if one is not None))
        self._owners, self._counts, self._device = owners, counts, device
        self._rows: dict[LoadedAdapter, slice | Tensor] = {}
        self._which: dict[Joint, Tensor] = {}

    def rows(self, adapter: LoadedAdapter) -> slice | Tensor:
        """The adapter's tokens in the step: a slice if they lie together, else ``[N]`` int64 on the device."""
        if adapter not in self._rows:
            runs = list(self._runs(adapter))
            together = all(before.stop == after.start for before, after in zip(runs, runs[1:], strict=False))
            self._rows[adapter] = (
                slice(runs[0].start, runs[-1].stop)
                if together
                else upload([row for run in runs for row in run], torch.int64, self._device)
            )
        return self._rows[adapter]

    def which(self, joint: Joint) -> Tensor:
        """``[T]`` int64: which of ``joint`` is each token's adapter, their number if it is none of them."""
        if joint not in self._which:
            places = {one: place for place, one in enumerate(joint)}
            numbers: list[int] = []
            for owner, count in zip(self._owners, self._counts, strict=True):
                numbers += [len(joint) if owner is None else places.get(owner, len(joint))] * count
            self._which[joint] = upload(numbers, torch.int64, self._device)
        return self._which[joint]

    def _runs(self, adapter: LoadedAdapter) -> Iterator[range]:
        start = 0
        for owner, count in zip(self._owners, self._counts, strict=True):
            if owner is adapter:
                yield range(start, start + count)
            start += count


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step that is being captured, or tried before."""

    which: Tensor
    """``[T]`` int64: the place of each token's adapter in the tables, where each replay finds it; 0: none."""
    tables: AdapterTables


class CurrentStep:
    """The step that is being computed, for all products of a model; ``None`` while it is one without adapters."""

    def __init__(self) -> None:
        self.step: AdaptedStep | CapturedStep | None = None

    @contextmanager
    def being(self, step: AdaptedStep | CapturedStep) -> Iterator[None]:
        """``step`` is being computed."""
        self.step = step
        try:
            yield
        finally:
            self.step = None


class AdaptedProduct:
    """``multiply``, and what the step's adapters do before and after it.

    Args:
        name: path of the layer in the model.
        multiply: with the base model's matrix.
        current: says which adapters there are.
    """

    def __init__(self, name: str, multiply: LinearFunction, current: CurrentStep) -> None:
        self._name, self._multiply, self._current = name, multiply, current
        self._joined: tuple[Joint, JoinedAdapters] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """``[T, in]`` to ``[T, out]``."""
        step = self._current.step
        if step is None:
            return self._multiply(x)
        if isinstance(step, CapturedStep):
            y = self._multiply(x)
            step.tables.add(self._name, x, y, step.which)
            return y
        found: Found = [(one, layer) for one in step.adapters if (layer := one.layers.get(self._name)) is not None]
        if len(x) != step.tokens:
            raise RuntimeError(f"{self._name!r} got {len(x)} rows in a step of {step.tokens} tokens: no adapter fits")
        x = _before(x, found, step)
        y = self._multiply(x)
        if _joins(found, step):
            joint, function = self._together(found)
            function(x, y, step.which(joint))
        else:
            _after(x, y, found, step)
        return y

    def forget(self) -> None:
        """Hold on to no adapter."""
        self._joined = None

    def _together(self, found: Found) -> tuple[Joint, JoinedAdapters]:
        """What applies them in one go. That of the last step, if it has them all, may have more of them."""
        if self._joined is None or not {one for one, _ in found} <= set(self._joined[0]):
            layers: list[Any] = [layer for _, layer in found]
            self._joined = tuple(one for one, _ in found), type(layers[0]).join(layers)
        return self._joined


def _joins(found: Found, step: AdaptedStep) -> bool:
    """True if several adapters, or one with scattered rows, can be applied in one go."""
    if not found or (len(found) == 1 and isinstance(step.rows(found[0][0]), slice)):
        return False
    kind = type(found[0][1])
    return issubclass(kind, Joinable) and all(type(layer) is kind for _, layer in found)


def _before(x: Tensor, found: Found, step: AdaptedStep) -> Tensor:
    changed = x
    for one, layer in found:
        if type(layer).before is not LayerAdapter.before:
            rows = step.rows(one)
            changed = changed.clone() if changed is x else changed
            changed[rows] = layer.before(x[rows])
    return changed


def _after(x: Tensor, y: Tensor, found: Found, step: AdaptedStep) -> None:
    for one, layer in found:
        rows = step.rows(one)
        part = y[rows]
        layer.after(x[rows], part)
        if not isinstance(rows, slice):  # a copy
            y[rows] = part
