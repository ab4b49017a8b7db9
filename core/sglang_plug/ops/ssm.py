"""The operations of recurrent layers, defined in torch: short convolution, linear attention, gated delta rule,
selective scan.

Each operates on a step's tokens of all sequences, one sequence after the other. It starts from the sequences' states
and writes the new states over them. A sequence may be divided into steps anywhere: the results are equal except
for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .host_device_copy import upload

if TYPE_CHECKING:
    from sglang_plug.contracts.model.recurrent_state import SequenceSpans

CHUNK = 64
"""Number of tokens whose mutual influence is computed as one matrix product."""
CHANNELS_CHUNK = 16
"""The chunk size if each channel decays separately, so that there is no such product."""
MIN_LOG_DECAY = -30.0
"""A log decay that forgets everything; sums of lower ones would be too inexact to tell tokens of a chunk apart."""
SCAN_CHUNK = 32
"""Number of tokens that a selective scan combines pairwise."""
At = Tensor | slice
"""The indices of some of the step's tokens."""


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: SequenceSpans) -> Tensor:
    """Convolve each channel over its last tokens; return the result in ``x``'s dtype.

    Args:
        x: ``[T, channels]``.
        weight: ``[channels, width]``; the last column belongs to the token itself.
        bias: ``[channels]``.
        states: ``[rows, width - 1, channels]``, the previous inputs.
        runs: the step's sequences.
    """
    history = weight.shape[1] - 1
    previous = states.index_select(0, runs.rows).to(x.dtype)  # [B, width - 1, channels]
    lengths = runs.lengths
    taps = weight.float()
    if len(set(lengths)) == 1:
        wide = torch.cat((previous, x.view(len(lengths), lengths[0], -1)), 1)
        convolved = _weighted_sum(wide.float(), taps, bias).flatten(0, 1)
        states.index_copy_(0, runs.rows, wide[:, lengths[0] :].to(states.dtype))
        return convolved.to(x.dtype)
    padded_runs = [torch.cat(pair) for pair in zip(previous, x.split_with_sizes(lengths), strict=True)]
    wide = torch.cat(padded_runs)
    convolved = _weighted_sum(wide.float()[None], taps, bias)[0]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + history + length)
    outputs = [convolved[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    states.index_copy_(0, runs.rows, torch.stack([wide[end - history : end] for end in starts[1:]]).to(states.dtype))
    return torch.cat(outputs).to(x.dtype)


def _weighted_sum(wide: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve ``[B, n + width - 1, channels]`` to ``[B, n, channels]``."""
    width = taps.shape[1]
    count = wide.shape[1] - width + 1
    total = wide[:, :count] * taps[:, 0]
    for tap in range(1, width):
        total = total + wide[:, tap : tap + count] * taps[:, tap]
    return total if bias is None else total + bias.float()


def linear_attention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor, runs: SequenceSpans) -> Tensor:
    """Compute ``S = exp(decay) * S + k v`` and return ``q @ S`` for each token (Mamba-2; Dao and Gu, 2024), in ``v``'s
    dtype.

    Args:
        q: ``[T, key_heads, dim]``.
        k: ``[T, key_heads, dim]``.
        v: ``[T, heads, value_dim]``; consecutive heads share those of ``q`` and ``k``.
        decay: ``[T, heads]`` float32, not above 0.
        states: ``[rows, heads, dim, value_dim]`` float32, ``S``.
        runs: the step's sequences.
    """
    group = v.shape[1] // k.shape[1]

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        key, query = _spread(k[at], group), _spread(q[at], group)
        state = state * decay[at].exp()[..., None, None] + key[..., None] * v[at].float()[..., None, :]
        return (query[..., None, :] @ state).squeeze(-2), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        part = slice(start, end)
        query, key = (_chunked(_spread(tensor[part], group)) for tensor in (q, k))
        value, log_decay = _chunked(v[part].float()), _chunked(decay[part])
        total = log_decay.cumsum(-1)
        mixed = (query @ key.mT) * _pairwise_decay(total)
        query, key = query * total.exp()[..., None], key * (total[..., -1:] - total).exp()[..., None]
        last = total[..., -1].exp()[..., None, None]
        output = mixed @ value
        for chunk in range(query.shape[1]):
            output[:, chunk] += query[:, chunk] @ state
            state = state * last[:, chunk] + key[:, chunk].mT @ value[:, chunk]
        return _unchunked(output, end - start), state

    return _over_runs(v, states, runs, one_token, many_tokens)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: SequenceSpans
) -> Tensor:
    """Compute ``linear_attention`` with the gated delta rule (gated DeltaNet; Yang et al., 2024).

    Each token replaces the value that ``S`` holds for its key: with ``S`` decayed, ``S += k beta (v - k @ S)``. Queries
    and keys are normalized to length one first, and queries divided by the square root of their width. Within a chunk
    the tokens' corrections depend on each other, which is a triangular system.

    Args:
        q: ``[T, key_heads, dim]``.
        k: ``[T, key_heads, dim]``.
        v: ``[T, heads, value_dim]``; consecutive heads share those of ``q`` and ``k``.
        decay: ``[T, heads]`` float32, not above 0; or ``[T, heads, dim]``, for each channel of the keys (Kimi Linear;
            Kimi Team, 2025).
        beta: ``[T, heads]``, from 0 to 1, or to 2 if states may be inverted.
        states: ``[rows, heads, dim, value_dim]`` float32, ``S``.
        runs: the step's sequences.
    """
    group = v.shape[1] // k.shape[1]
    q, k = _normalized(q) * q.shape[-1] ** -0.5, _normalized(k)
    size = CHUNK if decay.dim() == 2 else CHANNELS_CHUNK
    decay = (decay[..., None] if decay.dim() == 2 else decay).clamp_min(MIN_LOG_DECAY)

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        key, query = _spread(k[at], group), _spread(q[at], group)
        state = state * decay[at].exp()[..., None]
        change = (v[at].float() - (key[..., None, :] @ state).squeeze(-2)) * beta[at].float()[..., None]
        state = state + key[..., None] * change[..., None, :]
        return (query[..., None, :] @ state).squeeze(-2), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        part = slice(start, end)
        query, key = (_chunked(_spread(tensor[part], group), size) for tensor in (q, k))
        value, log_decay = _chunked(v[part].float(), size), _chunked(decay[part], size)
        rate = _chunked(beta[part].float(), size)[..., None]
        total = log_decay.cumsum(-2)
        grown, system = total.exp(), _decayed_products(rate * key, key, total)
        targets = torch.cat((rate * value, rate * key * grown), -1)
        solved = torch.linalg.solve_triangular(system, targets, upper=False, unitriangular=True)
        own, known = solved.split((value.shape[-1], key.shape[-1]), -1)
        mixed = _decayed_products(query, key, total)
        query, key = query * grown, key * (total[..., -1:, :] - total).exp()
        last = total[..., -1, :].exp()[..., None]
        output = torch.empty_like(value)
        for chunk in range(query.shape[1]):
            change = own[:, chunk] - known[:, chunk] @ state
            output[:, chunk] = query[:, chunk] @ state + mixed[:, chunk] @ change
            state = state * last[:, chunk] + key[:, chunk].mT @ change
        return _unchunked(output, end - start), state

    return _over_runs(v, states, runs, one_token, many_tokens)


def selective_scan(
    x: Tensor, step: Tensor, rates: Tensor, b: Tensor, c: Tensor, states: Tensor, runs: SequenceSpans
) -> Tensor:
    """Compute ``S = exp(step * rates) * S + step * x b`` and return ``S @ c`` for each token and channel (Mamba; Gu and
    Dao, 2023).

    Args:
        x: ``[T, channels]``.
        step: ``[T, channels]`` float32, above 0.
        rates: ``[channels, n]`` float32, below 0.
        b: ``[T, n]``.
        c: ``[T, n]``.
        states: ``[rows, channels, n]`` float32, ``S``.
        runs: the step's sequences.
    """

    def one_token(state: Tensor, at: At) -> tuple[Tensor, Tensor]:
        wide = step[at]
        state = state * (wide[..., None] * rates).exp() + (wide * x[at].float())[..., None] * b[at].float()[:, None]
        return (state @ c[at].float()[..., None]).squeeze(-1), state

    def many_tokens(state: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
        outputs = []
        for first in range(start, end, SCAN_CHUNK):
            part = slice(first, min(first + SCAN_CHUNK, end))
            wide = step[part]
            factor = (wide[..., None] * rates).exp()  # [n, channels, state]
            added = (wide * x[part].float())[..., None] * b[part].float()[:, None]
            factor, added = _scan(factor, added)
            along = factor * state + added
            outputs.append((along @ c[part].float()[..., None]).squeeze(-1))
            state = along[-1]
        return torch.cat(outputs), state

    return _over_runs(x, states, runs, one_token, many_tokens)


def _scan(factor: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """Compose ``s -> factor * s + added`` of each token with those of all earlier tokens, ``[n, ...]`` each, by
    doubling.
    """
    distance = 1
    while distance < len(factor):
        added = torch.cat((added[:distance], added[distance:] + factor[distance:] * added[:-distance]))
        factor = torch.cat((factor[:distance], factor[distance:] * factor[:-distance]))
        distance *= 2
    return factor, added


def _over_runs(
    like: Tensor,
    states: Tensor,
    runs: SequenceSpans,
    one_token: Callable[[Tensor, At], tuple[Tensor, Tensor]],
    many_tokens: Callable[[Tensor, int, int], tuple[Tensor, Tensor]],
) -> Tensor:
    """Process sequences of one new token together and others one after the other; return a tensor like ``like`` ``[T,
    ...]``.

    Both functions receive states and the indices of tokens, and return the tokens' outputs, in float32, and new states.
    """
    outputs = torch.empty_like(like)
    if max(runs.lengths) == 1:
        out, state = one_token(states.index_select(0, runs.rows), slice(None))
        states.index_copy_(0, runs.rows, state)
        return out.to(like.dtype)
    single = [index for index, length in enumerate(runs.lengths) if length == 1]
    if single:
        indices = upload(single, torch.int64, like.device)
        rows, at = runs.rows[indices], runs.starts[indices]
        out, state = one_token(states.index_select(0, rows), at)
        states.index_copy_(0, rows, state)
        outputs[at] = out.to(like.dtype)
    for index, start, end in _longer(runs.lengths):
        row = runs.rows[index : index + 1]
        out, state = many_tokens(states.index_select(0, row)[0], start, end)
        states.index_copy_(0, row, state[None])
        outputs[start:end] = out.to(like.dtype)
    return outputs


def _longer(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield index, start and end of each run of more than one token."""
    end = 0
    for index, length in enumerate(lengths):
        start, end = end, end + length
        if length > 1:
            yield index, start, end


def _normalized(x: Tensor) -> Tensor:
    """Divide ``x`` by its length in the last dimension, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).sum(-1, keepdim=True) + 1e-6)


def _spread(x: Tensor, group: int) -> Tensor:
    """Repeat ``[..., key_heads, dim]`` to ``[..., heads, dim]`` in float32."""
    return x.float() if group == 1 else x.float().repeat_interleave(group, -2)


def _chunked(x: Tensor, size: int = CHUNK) -> Tensor:
    """Split ``[n, heads, ...]`` into ``[heads, chunks, size, ...]``, padded with zeros; one smaller chunk if ``n <
    size``.
    """
    size = min(size, len(x))
    chunks = -(-len(x) // size)
    x = F.pad(x, (0, 0) * (x.dim() - 1) + (0, chunks * size - len(x)))
    return x.view(chunks, size, *x.shape[1:]).movedim(2, 0)


def _unchunked(x: Tensor, count: int) -> Tensor:
    """Join ``[heads, chunks, CHUNK, dim]`` to ``[count, heads, dim]``."""
    return x.flatten(1, 2)[:, :count].transpose(0, 1)


def _decayed_products(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Multiply each ``left`` by each ``right`` that is not after it, decayed in between.

    ``left`` and ``right`` are ``[heads, chunks, size, dim]``, ``total`` the sums of log decays with ``dim`` or 1 as the
    last dimension; the result is ``[heads, chunks, size, size]``.
    """
    if total.shape[-1] == 1:
        return (left @ right.mT) * _pairwise_decay(total.squeeze(-1))
    products = []
    for chunk in range(left.shape[1]):
        decayed = _pairwise_decay(total[:, chunk].mT).movedim(1, -1) * right[:, chunk, None]
        products.append((decayed @ left[:, chunk, ..., None]).squeeze(-1))
    return torch.stack(products, 1)


def _pairwise_decay(total: Tensor) -> Tensor:
    """Return ``[..., CHUNK, CHUNK]``, the decay from the column's token to the row's, from summed log decays."""
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
