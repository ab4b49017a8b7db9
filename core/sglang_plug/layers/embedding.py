"""Token embeddings, and the head that turns hidden states into logits."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.executor import ALONE, Collectives
from sglang_plug.model import BuildEnv
from sglang_plug.quantization import MatrixRole

from .linear import Linear, checked, resized


class Embedding(nn.Module):
    """A row for each token: ``[T]`` to ``[T, hidden]``.

    Args:
        size: number of tokens.
        hidden: width of a row.
        env: the surroundings the model is built in, if ranks are to share the tokens as those of a ``Head``; without
            it, every rank has all of them.
    """

    def __init__(self, size: int, hidden: int, env: BuildEnv | None = None) -> None:
        super().__init__()
        ranks = env.ranks if env is not None and env.shares_tokens else ALONE
        self._tokens, self._all = _own_tokens(size, ranks), size
        self._count = self._tokens.stop - self._tokens.start
        self._reduce = ranks.all_reduce if ranks.size > 1 else None
        self.weight = nn.Parameter(torch.empty(self._count, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """``[T]`` int64 to ``[T, hidden]``."""
        if self._reduce is None:
            return F.embedding(tokens, self.weight)
        if not self._count:
            return self._reduce(self.weight.new_zeros(len(tokens), self.weight.shape[1]))
        own = tokens - self._tokens.start
        found = F.embedding(own.clamp(0, self._count - 1), self.weight)
        return self._reduce(found.masked_fill(((own < 0) | (own >= self._count))[:, None], 0))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy this rank's rows of the checkpoint's tensor. Raises ``ValueError`` if that has another shape."""
        parameter.copy_(checked(tensor, self.whole_shape(parameter))[self._tokens])

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """``[vocabulary, hidden]``"""
        return (self._all, *parameter.shape[1:])


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
        self._tokens, self._all, self._padded = _own_tokens(size, env.ranks), size, -(-size // env.ranks.size)
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

    def _all_ranks(self, parameter: Tensor) -> tuple[int, ...]:
        """``[vocabulary, hidden]`` or ``[vocabulary]``, or as a quantized checkpoint stores it."""
        if (stored := self._stored_as(parameter)) is not None:
            return resized(parameter, stored.axis, -(-self._all // stored.rows))
        return (self._all, *parameter.shape[1:])

    def pack_weights(self) -> None:
        """As ``Linear``; of a weight that is shared with an embedding of all tokens, only the own part."""
        if self._tied and self._gather is not None and self.weight is not None and len(self.weight) == self._all:
            self.weight = nn.Parameter(self.weight.detach()[self._tokens], requires_grad=False)
        super().pack_weights()

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        if (stored := self._stored_as(parameter)) is not None:
            return stored.own_rows(tensor, self._tokens)
        whole = checked(tensor, self.whole_shape(parameter))
        return whole if parameter.shape == whole.shape else whole[self._tokens]


def _own_tokens(size: int, ranks: Collectives) -> slice:
    """Which of ``size`` tokens this rank has; the last ranks may have fewer."""
    each = -(-size // ranks.size)
    start = min(each * ranks.rank, size)
    return slice(start, min(start + each, size))
