"""Token embeddings, and the head that turns hidden states into logits."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.model import BuildEnv
from sglang_plug.quantization import MatrixRole

from .linear import Linear, checked, resized


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

    Ranks share the tokens, and each has all logits in the end.

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
        each = -(-size // env.ranks.size)
        start = min(each * env.ranks.rank, size)
        self._tokens, self._all, self._padded = slice(start, min(start + each, size)), size, each
        own = self._tokens.stop - self._tokens.start
        super().__init__(hidden, own if tied is None else 0, env, bias=bias)
        self._gather = env.ranks.all_gather if env.ranks.size > 1 else None
        self._tied = tied is not None
        if tied is not None:
            self.weight, self.plain, self.size_out = tied.weight, True, own
            self.bias = nn.Parameter(torch.empty(own)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``[rows, hidden]`` to ``[rows, vocabulary]``."""
        found = self._multiply(x)
        if self._gather is None:
            return found
        missing = self._padded - found.shape[1]
        found = F.pad(found, (0, missing)) if missing else found.contiguous()
        return self._gather(found)[:, : self._all]

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """``[vocabulary, hidden]`` or ``[vocabulary]``, or as a quantized checkpoint stores it."""
        if (stored := self._stored_as(parameter)) is not None:
            return resized(parameter, stored.axis, -(-self._all // stored.rows))
        return (self._all, *parameter.shape[1:])

    def pack_weights(self) -> None:
        """As ``Linear``; of a weight that is shared with the embedding, only the own part."""
        if self._tied and self._gather is not None and self.weight is not None:
            self.weight = nn.Parameter(self.weight.detach()[self._tokens], requires_grad=False)
        super().pack_weights()

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        if (stored := self._stored_as(parameter)) is not None:
            return stored.own_rows(tensor, self._tokens)
        whole = checked(tensor, self.whole_shape(parameter))
        return whole if parameter.shape == whole.shape else whole[self._tokens]
