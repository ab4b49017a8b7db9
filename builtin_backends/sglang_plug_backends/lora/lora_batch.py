"""Steps in which requests have adapters: the rows of each adapter, and the matrix products that adapters change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sglang_plug import Joinable, JoinedAdapters, LayerAdapter, LinearFunction, upload

from .adapter_tables import AdapterTables


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoadedAdapter:
    """An adapter that requests may name."""

    name: str
    path: str
    salt: str
    """Separates the adapter's prefixes from all others in the prefix cache and in KV stores; see ``adapter_salt``."""
    layers: Mapping[str, LayerAdapter]
    facts: Mapping[str, Any] = field(default_factory=dict)
    slot: int = 0
    """The adapter's slot in the tables that captured steps read; 0: none."""
    number: int = 0
    """The adapter's number in messages to other ranks."""


@dataclass(slots=True)
class AdapterUse:
    """The adapter of one sequence, which keeps it until the request ends even if it is unloaded."""

    adapter: LoadedAdapter
    left_out_since: float | None = None
    """Time since when the sequence is not admitted because its adapter would exceed the limit of a step."""


AdapterGroup = tuple[LoadedAdapter, ...]
AdaptersOfLayer = list[tuple[LoadedAdapter, LayerAdapter]]
"""The adapters of a step that change one layer, with their changes of that layer."""


class AdaptedStep:
    """The adapters of one step.

    Args:
        owners: the adapter of each sequence in the step, or ``None``.
        counts: number of new tokens of each sequence.
        device: the model's device.
    """

    def __init__(self, owners: Ordered[LoadedAdapter | None], counts: Ordered[int], device: torch.device) -> None:
        self.tokens = sum(counts)
        self.adapters: AdapterGroup = tuple(dict.fromkeys(owner for owner in owners if owner is not None))
        self._owners, self._counts, self._device = owners, counts, device
        self._rows: dict[LoadedAdapter, slice | Tensor] = {}
        self._which: dict[AdapterGroup, Tensor] = {}

    def rows(self, adapter: LoadedAdapter) -> slice | Tensor:
        """Return the adapter's rows in the step: a slice if they are consecutive, else ``[N]`` int64 on the device."""
        if adapter not in self._rows:
            runs = list(self._runs(adapter))
            together = all(before.stop == after.start for before, after in zip(runs, runs[1:], strict=False))
            self._rows[adapter] = (
                slice(runs[0].start, runs[-1].stop)
                if together
                else upload([row for run in runs for row in run], torch.int64, self._device)
            )
        return self._rows[adapter]

    def which(self, group: AdapterGroup) -> Tensor:
        """Return ``[T]`` int64: the index in ``group`` of each token's adapter; ``len(group)``: none of them."""
        if group not in self._which:
            indices = {adapter: index for index, adapter in enumerate(group)}
            numbers: list[int] = []
            for owner, count in zip(self._owners, self._counts, strict=True):
                numbers += [len(group) if owner is None else indices.get(owner, len(group))] * count
            self._which[group] = upload(numbers, torch.int64, self._device)
        return self._which[group]

    def _runs(self, adapter: LoadedAdapter) -> Iterator[range]:
        start = 0
        for owner, count in zip(self._owners, self._counts, strict=True):
            if owner is adapter:
                yield range(start, start + count)
            start += count


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step that is being captured, or warmed up before the capture."""

    which: Tensor
    """``[T]`` int64: the slot of each token's adapter in the tables, read by each replay; 0: none."""
    tables: AdapterTables


class CurrentStep:
    """The step that is being computed, for all products of a model; ``None`` if it has no adapters."""

    def __init__(self) -> None:
        self.step: AdaptedStep | CapturedStep | None = None

    @contextmanager
    def active(self, step: AdaptedStep | CapturedStep) -> Iterator[None]:
        """Make ``step`` the current one inside the context."""
        self.step = step
        try:
            yield
        finally:
            self.step = None


class AdaptedProduct:
    """A matrix product of the base model, with the changes that the step's adapters make before and after it.

    Args:
        name: path of the layer in the model.
        multiply: multiplies with the base model's matrix.
        current: holds the adapters of the current step.
    """

    def __init__(self, name: str, multiply: LinearFunction, current: CurrentStep) -> None:
        self._name, self._multiply, self._current = name, multiply, current
        self._fused_adapters: tuple[AdapterGroup, JoinedAdapters] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[T, in]`` to ``[T, out]``."""
        step = self._current.step
        if step is None:
            return self._multiply(x)
        if isinstance(step, CapturedStep):
            y = self._multiply(x)
            step.tables.add(self._name, x, y, step.which)
            return y
        adapters: AdaptersOfLayer = [
            (adapter, layer) for adapter in step.adapters if (layer := adapter.layers.get(self._name)) is not None
        ]
        if len(x) != step.tokens:
            raise RuntimeError(f"{self._name!r} got {len(x)} rows in a step of {step.tokens} tokens: no adapter fits")
        x = _before(x, adapters, step)
        y = self._multiply(x)
        if _joins(adapters, step):
            group, function = self._fused(adapters)
            function(x, y, step.which(group))
        else:
            _after(x, y, adapters, step)
        return y

    def forget(self) -> None:
        """Drop references to adapters."""
        self._fused_adapters = None

    def _fused(self, adapters: AdaptersOfLayer) -> tuple[AdapterGroup, JoinedAdapters]:
        """Return the joined adapters, applied in one call; the last step's are reused if they include all of these."""
        if self._fused_adapters is None or not {adapter for adapter, _ in adapters} <= set(self._fused_adapters[0]):
            layers: list[Any] = [layer for _, layer in adapters]
            self._fused_adapters = tuple(adapter for adapter, _ in adapters), type(layers[0]).join(layers)
        return self._fused_adapters


def _joins(adapters: AdaptersOfLayer, step: AdaptedStep) -> bool:
    """Report whether several adapters, or one with scattered rows, can be applied in one call."""
    if not adapters or (len(adapters) == 1 and isinstance(step.rows(adapters[0][0]), slice)):
        return False
    kind = type(adapters[0][1])
    return issubclass(kind, Joinable) and all(type(layer) is kind for _, layer in adapters)


def _before(x: Tensor, adapters: AdaptersOfLayer, step: AdaptedStep) -> Tensor:
    changed = x
    for adapter, layer in adapters:
        if type(layer).before is not LayerAdapter.before:
            rows = step.rows(adapter)
            changed = changed.clone() if changed is x else changed
            changed[rows] = layer.before(x[rows])
    return changed


def _after(x: Tensor, y: Tensor, adapters: AdaptersOfLayer, step: AdaptedStep) -> None:
    for adapter, layer in adapters:
        rows = step.rows(adapter)
        part = y[rows]
        layer.after(x[rows], part)
        if not isinstance(rows, slice):  # a copy
            y[rows] = part
