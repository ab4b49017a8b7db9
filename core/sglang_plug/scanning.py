"""What recurrent layers compute, defined in torch: a short convolution, linear attention, the gated delta rule, and a
selective scan.

Each works on a step's tokens of all sequences, one sequence after the other, begins with the sequences' states and
leaves the new ones in their place. A sequence may be cut into steps anywhere: the results are the same but for
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .recurrent import Runs
from .transfer import upload

CHUNK = 64
"""Tokens whose mutual influence is one product of matrices."""
CHANNELS_CHUNK = 16
"""The same, where each channel decays by itself: there is no such product."""
FORGOTTEN = -30.0
"""A decay that leaves nothing; sums of greater ones would not be exact enough to tell tokens of a chunk apart."""
SCAN_CHUNK = 32
"""Tokens that a selective scan combines pairwise."""
At = Tensor | slice
"""Which of the step's tokens."""


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: Runs) -> Tensor:
    """A convolution of each channel over the last tokens, in ``x``'s dtype.

    Args:
        x: ``[T, channels]``.
        weight: ``[channels, width]``; the last column belongs to the token itself.
        bias: ``[channels]``.
        states: ``[rows, width - 1, channels]``, the inputs before.
        runs: of the step.
    """
    before = weight.shape[1] - 1
    held = states.index_select(0, runs.rows).to(x.dtype)  # [B, width - 1, channels]
    lengths = runs.lengths
    taps = weight.float()
    if len(set(lengths)) == 1:
        wide = torch.cat((held, x.view(len(lengths), lengths[0], -1)), 1)
        found = _weighed(wide.float(), taps, bias).flatten(0, 1)
        states.index_copy_(0, runs.rows, wide[:, lengths[0] :].to(states.dtype))
        return found.to(x.dtype)
    pieces = [torch.cat(pair) for pair in zip(held, x.split_with_sizes(lengths), strict=True)]
    wide = torch.cat(pieces)
    found = _weighed(wide.float()[None], taps, bias)[0]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + before + length)
    own = [found[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    states.index_copy_(0, runs.rows, torch.stack([wide[end - before : end] for end in starts[1:]]).to(states.dtype))
    return torch.cat(own).to(x.dtype)


def _weighed(wide: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """``[B, n + width - 1, channels]`` to ``[B, n, channels]``."""
    width = taps.shape[1]
    count = wide.shape[1] - width + 1
    found = wide[:, :count] * taps[:, 0]
    for tap in range(1, width):
        found = found + wide[:, tap : tap + count] * taps[:, tap]
    return found if bias is None else found + bias.float()


def linear_attention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor, runs: Runs) -> Tensor:
    """``q @ S`` with ``S = exp(decay) * S + k v``, for each token (Mamba-2; Dao and Gu, 2024), in ``v``'s dtype.

    Args:
        q: ``[T, key_heads, dim]``.
        k: ``[T, key_heads, dim]``.
        v: ``[T, heads, value_dim]``; consecutive heads share those of ``q`` and ``k``.
        decay: ``[T, heads]`` float32, not above 0.
        states: ``[rows, heads, dim, value_dim]`` float32, ``S``.
        runs: of the step.
    """
    group = v.shape[1] // k.shape[1]

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        key, query = _spread(k[at], group), _spread(q[at], group)
        state = state * decay[at].exp()[..., None, None] + key[..., None] * v[at].float()[..., None, :]
        return (query[..., None, :] @ state).squeeze(-2), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        part = slice(start, end)
        query, key = (_chunked(_spread(one[part], group)) for one in (q, k))
        value, within = _chunked(v[part].float()), _chunked(decay[part])
        total = within.cumsum(-1)
        mixed = (query @ key.mT) * _pairwise(total)
        query, key = query * total.exp()[..., None], key * (total[..., -1:] - total).exp()[..., None]
        last = total[..., -1].exp()[..., None, None]
        found = mixed @ value
        for chunk in range(query.shape[1]):
            found[:, chunk] += query[:, chunk] @ state
            state = state * last[:, chunk] + key[:, chunk].mT @ value[:, chunk]
        return _unchunked(found, end - start), state

    return _over_runs(v, states, runs, one_token, many_tokens)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: Runs
) -> Tensor:
    """As ``linear_attention``, but each token first takes from ``S`` what its key finds there: with ``S`` decayed,
    ``S += k beta (v - k @ S)`` (gated DeltaNet; Yang et al., 2024).

    Queries and keys are brought to length one first, and queries divided by the root of their width. Within a chunk the
    tokens' corrections depend on each other, which is a triangular system.

    Args:
        q: ``[T, key_heads, dim]``.
        k: ``[T, key_heads, dim]``.
        v: ``[T, heads, value_dim]``; consecutive heads share those of ``q`` and ``k``.
        decay: ``[T, heads]`` float32, not above 0; or ``[T, heads, dim]``, of each channel of the keys (Kimi Linear;
            Kimi Team, 2025).
        beta: ``[T, heads]``, from 0 to 1, or to 2 where states may be turned round.
        states: ``[rows, heads, dim, value_dim]`` float32, ``S``.
        runs: of the step.
    """
    group = v.shape[1] // k.shape[1]
    q, k = _of_length_one(q) * q.shape[-1] ** -0.5, _of_length_one(k)
    size = CHUNK if decay.dim() == 2 else CHANNELS_CHUNK
    decay = (decay[..., None] if decay.dim() == 2 else decay).clamp_min(FORGOTTEN)

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        key, query = _spread(k[at], group), _spread(q[at], group)
        state = state * decay[at].exp()[..., None]
        change = (v[at].float() - (key[..., None, :] @ state).squeeze(-2)) * beta[at].float()[..., None]
        state = state + key[..., None] * change[..., None, :]
        return (query[..., None, :] @ state).squeeze(-2), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        part = slice(start, end)
        query, key = (_chunked(_spread(one[part], group), size) for one in (q, k))
        value, within = _chunked(v[part].float(), size), _chunked(decay[part], size)
        rate = _chunked(beta[part].float(), size)[..., None]
        total = within.cumsum(-2)
        grown, system = total.exp(), _products(rate * key, key, total)
        wanted = torch.cat((rate * value, rate * key * grown), -1)
        solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        own, known = solved.split((value.shape[-1], key.shape[-1]), -1)
        mixed = _products(query, key, total)
        query, key = query * grown, key * (total[..., -1:, :] - total).exp()
        last = total[..., -1, :].exp()[..., None]
        found = torch.empty_like(value)
        for chunk in range(query.shape[1]):
            change = own[:, chunk] - known[:, chunk] @ state
            found[:, chunk] = query[:, chunk] @ state + mixed[:, chunk] @ change
            state = state * last[:, chunk] + key[:, chunk].mT @ change
        return _unchunked(found, end - start), state

    return _over_runs(v, states, runs, one_token, many_tokens)


def selective_scan(x: Tensor, step: Tensor, rates: Tensor, b: Tensor, c: Tensor, states: Tensor, runs: Runs) -> Tensor:
    """``S @ c`` with ``S = exp(step * rates) * S + step * x b``, for each token and channel (Mamba; Gu and Dao, 2023).

    Args:
        x: ``[T, channels]``.
        step: ``[T, channels]`` float32, above 0.
        rates: ``[channels, n]`` float32, below 0.
        b: ``[T, n]``.
        c: ``[T, n]``.
        states: ``[rows, channels, n]`` float32, ``S``.
        runs: of the step.
    """

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        wide = step[at]
        state = state * (wide[..., None] * rates).exp() + (wide * x[at].float())[..., None] * b[at].float()[:, None]
        return (state @ c[at].float()[..., None]).squeeze(-1), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        found = []
        for first in range(start, end, SCAN_CHUNK):
            part = slice(first, min(first + SCAN_CHUNK, end))
            wide = step[part]
            factor = (wide[..., None] * rates).exp()  # [n, channels, state]
            added = (wide * x[part].float())[..., None] * b[part].float()[:, None]
            factor, added = _scanned(factor, added)
            along = factor * state + added
            found.append((along @ c[part].float()[..., None]).squeeze(-1))
            state = along[-1]
        return torch.cat(found), state

    return _over_runs(x, states, runs, one_token, many_tokens)


def _scanned(factor: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """``s -> factor * s + added`` of each token after all of those before it, ``[n, ...]`` each, by doubling."""
    distance = 1
    while distance < len(factor):
        added = torch.cat((added[:distance], added[distance:] + factor[distance:] * added[:-distance]))
        factor = torch.cat((factor[:distance], factor[distance:] * factor[:-distance]))
        distance *= 2
    return factor, added


def _over_runs(
    like: Tensor,
    states: Tensor,
    runs: Runs,
    one_token: Callable[[Tensor, At], tuple[Tensor, Tensor]],
    many_tokens: Callable[[Tensor, int, int], tuple[Tensor, Tensor]],
) -> Tensor:
    """Sequences of one new token all at once, others one after the other; gives what belongs to ``like`` ``[T, ...]``.

    Either function is given states and says which tokens, and returns what came of these, in float32, and new states.
    """
    found = torch.empty_like(like)
    if max(runs.lengths) == 1:
        out, state = one_token(states.index_select(0, runs.rows), slice(None))
        states.index_copy_(0, runs.rows, state)
        return out.to(like.dtype)
    single = [place for place, length in enumerate(runs.lengths) if length == 1]
    if single:
        places = upload(single, torch.int64, like.device)
        rows, at = runs.rows[places], runs.starts[places]
        out, state = one_token(states.index_select(0, rows), at)
        states.index_copy_(0, rows, state)
        found[at] = out.to(like.dtype)
    for place, start, end in _longer(runs.lengths):
        row = runs.rows[place : place + 1]
        out, state = many_tokens(states.index_select(0, row)[0], start, end)
        states.index_copy_(0, row, state[None])
        found[start:end] = out.to(like.dtype)
    return found


def _longer(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Place, start and end of each run of more than one token."""
    end = 0
    for place, length in enumerate(lengths):
        start, end = end, end + length
        if length > 1:
            yield place, start, end


def _of_length_one(x: Tensor) -> Tensor:
    """``x`` over its length in the last dimension, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + 1e-6)


def _spread(x: Tensor, group: int) -> Tensor:
    """``[..., key_heads, dim]`` to ``[..., heads, dim]`` in float32."""
    return x.float() if group == 1 else x.float().repeat_interleave(group, -2)


def _chunked(x: Tensor, size: int = CHUNK) -> Tensor:
    """``[n, heads, ...]`` to ``[heads, chunks, size, ...]``, zeros at the end; all in one if there are fewer."""
    size = min(size, len(x))
    chunks = -(-len(x) // size)
    x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, chunks * size - len(x)))
    return x.view(chunks, size, *x.shape[1:]).movedim(2, 0)


def _unchunked(x: Tensor, count: int) -> Tensor:
    """``[heads, chunks, CHUNK, dim]`` to ``[count, heads, dim]``."""
    return x.flatten(1, 2)[:, :count].transpose(0, 1)


def _products(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """What is left of each ``right`` at each ``left`` that is not before it, times that: ``[heads, chunks, size, dim]``
    twice, and sums of decays with ``dim`` or 1 as the last dimension, to ``[heads, chunks, size, size]``."""
    if total.shape[-1] == 1:
        return (left @ right.mT) * _pairwise(total.squeeze(-1))
    found = []
    for chunk in range(left.shape[1]):
        decayed = _pairwise(total[:, chunk].mT).movedim(1, -1) * right[:, chunk, None]
        found.append((decayed @ left[:, chunk, ..., None]).squeeze(-1))
    return torch.stack(found, 1)


def _pairwise(total: Tensor) -> Tensor:
    """``[..., CHUNK]``, sums of decays, to ``[..., CHUNK, CHUNK]``: what is left of the column's token at the row's."""
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
