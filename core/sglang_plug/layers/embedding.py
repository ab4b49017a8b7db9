"""Token embeddings, and the head that turns hidden states into logits."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.contracts.model.model import BuildEnv
from sglang_plug.contracts.model.quantization import MatrixRole
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives

from .linear import Linear, checked, resized


class Embedding(nn.Module):
    """The rows of tokens: ``[T]`` to ``[T, hidden]``.

    Args:
        size: number of tokens.
        hidden: width of a row.
        env: the environment that the model is built in, if ranks share the tokens like those of a ``ParallelLMHead``;
            without it, every rank has all of them.
    """

    def __init__(self, size: int, hidden: int, env: BuildEnv | None = None) -> None:
        super().__init__()
        ranks = env.ranks if env is not None and env.shares_tokens else SINGLE_RANK
        self._tokens, self._all = _own_tokens(size, ranks), size
        self._count = self._tokens.stop - self._tokens.start
        self._reduce = ranks.all_reduce if ranks.size > 1 else None
        self.weight = nn.Parameter(torch.empty(self._count, hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows ``[T, hidden]`` of tokens ``[T]`` int64."""
        if self._reduce is None:
            return F.embedding(tokens, self.weight)
        if not self._count:
            return self._reduce(self.weight.new_zeros(len(tokens), self.weight.shape[1]))
        local = tokens - self._tokens.start
        rows = F.embedding(local.clamp(0, self._count - 1), self.weight)
        return self._reduce(rows.masked_fill(((local < 0) | (local >= self._count))[:, None], 0))

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy this rank's rows of the checkpoint's tensor. Raises ``ValueError`` if that has another shape."""
        parameter.copy_(checked(tensor, self.whole_shape(parameter))[self._tokens])

    def whole_shape(self, parameter: Tensor) -> tuple[int, ...]:
        """Return ``[vocabulary, hidden]``."""
        return (self._all, *parameter.shape[1:])


class ParallelLMHead(Linear):
    """The matrix from hidden states to logits, ``[rows, hidden]`` to ``[rows, vocabulary]``.

    Ranks share the tokens, and each receives all logits.

    Args:
        hidden: width of the hidden states.
        size: number of tokens.
        env: the environment that the model is built in.
        tied: the embedding whose weight this head shares, if any.
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
            self.weight, self.unquantized, self.size_out = tied.weight, True, own
            self.bias = nn.Parameter(torch.empty(own)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[rows, vocabulary]`` of ``[rows, hidden]``."""
        logits = self._multiply(x)
        if self._gather is None:
            return logits
        padding = self._padded - logits.shape[1]
        logits = F.pad(logits, (0, padding)) if padding else logits.contiguous()
        return self._gather(logits)[:, : self._all]

    def _all_ranks(self, parameter: Tensor) -> tuple[int, ...]:
        """Return ``[vocabulary, hidden]`` or ``[vocabulary]``, or the shape that a quantized checkpoint has."""
        if (stored := self._stored_as(parameter)) is not None:
            return resized(parameter, stored.axis, -(-self._all // stored.rows))
        return (self._all, *parameter.shape[1:])

    def pack_weights(self) -> None:
        """Pack like ``Linear``; of a weight that is shared with an embedding of all tokens, only this rank's rows."""
        if self._tied and self._gather is not None and self.weight is not None and len(self.weight) == self._all:
            self.weight = nn.Parameter(self.weight.detach()[self._tokens], requires_grad=False)
        super().pack_weights()

    def _own_part(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> Tensor:
        if (stored := self._stored_as(parameter)) is not None:
            return stored.own_rows(tensor, self._tokens)
        whole = checked(tensor, self.whole_shape(parameter))
        return whole if parameter.shape == whole.shape else whole[self._tokens]


def _own_tokens(size: int, ranks: Collectives) -> slice:
    """Return this rank's slice of ``size`` tokens; the last ranks may have fewer."""
    each = -(-size // ranks.size)
    start = min(each * ranks.rank, size)
    return slice(start, min(start + each, size))
