"""A context in which torch has another default dtype.

The default belongs to the whole process. Two threads that changed it at once would restore each other's value and leave
a wrong default behind; code that relies on the default would then allocate tensors of another size.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_changing = threading.RLock()
"""The lock of the thread that has changed the default."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make ``dtype`` the default inside the context; other threads that want to change the default wait.

    Threads that create tensors meanwhile use the changed default: they must name the dtype they need.
    """
    with _changing:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
