"""Functions around the attention of all layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor

from sglang_plug import Attention, Model

Attend = Callable[..., Tensor | tuple[Tensor, ...]]
"""One of a backend's ways to attend, such as ``AttentionBackend.run``."""


@contextmanager
def wrap_attention(model: Model, around: Callable[[Attend], Attend]) -> Iterator[None]:
    """Let all layers of ``model`` attend by the wrapped functions that ``around`` returns, inside the context."""
    with ExitStack() as layers:
        for module in model.modules():
            if isinstance(module, Attention):
                layers.enter_context(module.wrap_attention(around))
        yield
