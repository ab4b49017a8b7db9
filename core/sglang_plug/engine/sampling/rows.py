"""Selection of rows of a batch's tensors."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.ops.host_device_copy import upload


class Rows:
    """A selection of rows of a batch, on the host and on the device.

    Args:
        places: indices of the rows, in the order of the selection.
        batch: rows of the whole batch.
        device: the device of the tensors.
    """

    def __init__(self, places: Ordered[int], batch: int, device: torch.device) -> None:
        self.places = tuple(places)
        first = self.places[0] if self.places else 0
        is_run = self.places == tuple(range(first, first + len(self.places)))
        self._whole = is_run and len(self.places) == batch
        self._run = slice(first, first + len(self.places)) if is_run else None
        self._index = None if is_run else upload(self.places, torch.int64, device)

    def __bool__(self) -> bool:
        return bool(self.places)

    def of(self, values: Tensor) -> Tensor:
        """Return these rows of ``values``: a copy, or a view of ``values`` if they are consecutive."""
        if self._whole:
            return values
        return values[self._run] if self._index is None else values.index_select(0, self._index)

    @property
    def shares_memory(self) -> bool:
        """True if ``of`` returns a view: changes of it need not be put back."""
        return self._index is None

    def put(self, values: Tensor, into: Tensor) -> Tensor:
        """Return ``into`` with ``values`` in these rows; may overwrite ``into``."""
        if self._whole:
            return values
        if self._index is not None:
            return into.index_copy_(0, self._index, values)
        into[self._run].copy_(values)
        return into
