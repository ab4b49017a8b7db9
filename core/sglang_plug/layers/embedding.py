"""Token embeddings, and the head that turns hidden states into logits."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.model import BuildEnv
from sglang_plug.quantization import MatrixRole

from .linear import Linear


class Embedding(nn.Module):
    """A row for each token: ``[T]`` to ``[T, hidden]``."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """``[T]`` int64 to ``[T, hidden]``."""
        return F.embedding(tokens, self.weight)


class Head(Linear):
    """Hidden states to logits, ``[rows, hidden]`` to ``[rows, vocabulary]``.

    Args:
        hidden: width of the hidden states.
        size: number of tokens.
        env: the surroundings the model is built in.
        tied: the embedding whose weight this head shares, if it does.
        bias: whether each token has a bias.
    """

    role: ClassVar[MatrixRole] = "head"

    def __init__(
        self, hidden: int, size: int, env: BuildEnv, *, tied: Embedding | None = None, bias: bool = False
    ) -> None:
        super().__init__(hidden, size if tied is None else 0, env, bias=bias)
        if tied is not None:
            self.weight, self.plain, self.size_out = tied.weight, True, size
            self.bias = nn.Parameter(torch.empty(size)) if bias else None
