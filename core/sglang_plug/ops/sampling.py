"""Sampling of tokens from logits, defined in torch; kernel sets may replace these functions.

On an accelerator nothing here waits for the device. On a CPU, where nothing has to be waited for, inspecting the
numbers first saves most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from sglang_plug.contracts.sampling_params import SamplingParams


CANDIDATES = 1024
"""Number of the most likely tokens among which top-p is tried first."""
TIE_MARGIN = 64
"""Number of candidates in addition to top-k, as other tokens may be as likely as the last of them."""
GROWTH = 16
"""Factor by which the candidates grow while they are too few; in the end all tokens are sorted."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Limits of float32 with room for arithmetic: beyond them, 0 would switch a limit off and infinity result in NaN."""
BLOCK = 512
"""Number of probabilities that are summed in float64 at once."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling parameters of some rows, on the host and as tensors on the device of their logits."""

    params: tuple[SamplingParams, ...]
    """The parameters of each row; none is greedy."""
    temperature: Tensor
    """``[rows]`` float32."""
    top_k: Tensor
    """``[rows]`` int32; the size of the vocabulary where top-k is off."""
    top_p: Tensor
    """``[rows]`` float32."""
    min_p: Tensor
    """``[rows]`` float32."""
    cut: tuple[int, ...]
    """Rows with a top-k, top-p or min-p."""
    cut_index: Tensor | None
    """The same rows, int64; ``None`` if they are none or all."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocabulary: int, send: Callable[[Tensor], Tensor]) -> SamplingOptions:
        """Build the options of ``params``, one for each row; ``send`` copies a tensor from the host to the device."""
        limits = [row.top_k if 0 < row.top_k < vocabulary else vocabulary for row in params]
        columns = [[min(row.temperature, LARGEST) for row in params], limits]
        columns += [[max(row.top_p, SMALLEST) for row in params], [row.min_p for row in params]]
        temperature, top_k, top_p, min_p = send(torch.tensor(columns, dtype=torch.float64)).unbind()
        cut = [index for index, row in enumerate(params) if row.top_k > 0 or row.top_p < 1.0 or row.min_p > 0.0]
        cut_index = send(torch.tensor(cut)) if 0 < len(cut) < len(params) else None
        numbers = (temperature.float(), top_k.to(torch.int32), top_p.float(), min_p.float())
        return cls(tuple(params), *numbers, tuple(cut), cut_index)


def sample_tokens(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    """Sample a token for each row from softmax after temperature, top-k, top-p and min-p; return ``[rows]`` int64.

    Top-k keeps the ``k`` most likely tokens. Top-p keeps those of them, most likely first, before which the running sum
    is less than ``top_p`` of their total. Min-p keeps tokens that are at least ``min_p`` as likely as the most likely
    one. Of equally likely tokens those with the lowest ids are kept. Each kernel may choose the order in which tokens
    divide the interval [0, 1). A row's token must not depend on other rows. Rows that are not finite yield an arbitrary
    token.

    Args:
        logits: ``[rows, vocabulary]`` float32, -inf for tokens that are not allowed.
        options: the sampling options of the rows.
        uniform: ``[rows]`` float64 in [0, 1), the random numbers.
    """
    uniform = uniform[:, None]
    probs = (logits / options.temperature[:, None]).softmax(-1)
    if not options.cut:
        return _pick(probs, uniform)
    everything = range(len(options.params))
    if len(options.cut) == len(everything):
        return _sample_truncated(probs, options, uniform)
    tokens, index = _pick(probs, uniform), options.cut_index
    assert index is not None
    part = SamplingOptions(
        tuple(options.params[row] for row in options.cut),
        options.temperature[index],
        options.top_k[index],
        options.top_p[index],
        options.min_p[index],
        tuple(range(len(options.cut))),
        None,
    )
    return tokens.index_copy(0, index, _sample_truncated(probs[index], part, uniform[index]))


def mask_logits(logits: Tensor, rows: Tensor | None, mask: Tensor) -> Tensor:
    """Return float32 ``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them.

    Args:
        logits: the logits to mask.
        rows: int64 ``[n]``, the row of each mask, without repetition; ``None`` if there is one for every row, in order.
        mask: int32 ``[n, words]`` on the same device: a token's bit is bit ``token % 32`` of word ``token // 32``.
    """
    bias = mask_bias(mask, logits.shape[-1])
    return logits.add_(bias) if rows is None else logits.index_add_(0, rows, bias)


def mask_bias(mask: Tensor, width: int) -> Tensor:
    """Convert a mask, int32 ``[rows, words]``, to float32 ``[rows, width]``: 0 for allowed tokens, else -inf.

    Adding this to logits is twenty times as fast on a CPU as filling. Tokens beyond the mask are not allowed.
    """
    octets = mask.view(torch.uint8).to(torch.int32)
    bias = F.embedding(octets, _table(mask.device)).flatten(1)
    if bias.shape[-1] < width:
        bias = F.pad(bias, (0, width - bias.shape[-1]), value=-torch.inf)
    return bias[:, :width]


@cache
def _table(device: torch.device) -> Tensor:
    """Return ``[256, 8]``: for each byte the bias of its eight bits, lowest first."""
    octets = torch.arange(256, dtype=torch.int32, device=device)[:, None]
    bits = (octets >> torch.arange(8, dtype=torch.int32, device=device)) & 1
    return torch.zeros(256, 8, dtype=torch.float32, device=device).masked_fill_(bits == 0, -torch.inf)


def _sample_truncated(probs: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    tokens = probs.new_empty(len(probs), dtype=torch.int64)
    for values, indices in _candidates(probs, options.params):
        kept = _keep(values, probs, options)
        if values.shape[-1] == probs.shape[-1] or _is_settled(values, kept):
            tokens = indices.gather(1, _pick(kept, uniform)[:, None])[:, 0]
            break
    return tokens


def _candidates(probs: Tensor, params: Sequence[SamplingParams]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield probabilities and tokens, sorted by falling probability, then by token; ever more, at last all."""
    if probs.device.type == "cpu":
        size = max(row_params.top_k + TIE_MARGIN if row_params.top_k > 0 else CANDIDATES for row_params in params)
        while size < probs.shape[-1]:
            tokens = probs.topk(size, dim=-1, sorted=False).indices.sort(dim=-1).values
            values, order = probs.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
            yield values, tokens.gather(1, order)
            size *= GROWTH
    yield probs.sort(dim=-1, descending=True, stable=True)


def _keep(values: Tensor, probs: Tensor, options: SamplingOptions) -> Tensor:
    """Return the candidates' probabilities, zero for removed ones, whatever the number of candidates."""
    vocabulary, width = probs.shape[-1], values.shape[-1]
    top_k, top_p, min_p = options.top_k[:, None].long(), options.top_p[:, None], options.min_p[:, None]
    running = values.cumsum(-1)
    # the mass that top-p is a share of: what top-k left, or everything where there is no top-k
    top_k_mass = running.gather(1, top_k.clamp(max=width) - 1)
    mass = torch.where(top_k < vocabulary, top_k_mass, probs.sum(-1, keepdim=True))
    kept = values.masked_fill(torch.arange(width, device=probs.device) >= top_k, 0.0)
    kept = kept.masked_fill(running - values >= top_p * mass, 0.0)
    return kept.masked_fill(values < min_p * values[:, :1], 0.0)


def _is_settled(values: Tensor, kept: Tensor) -> bool:
    """Return True if every token outside the candidates is less likely than every kept one. Reads the values."""
    return bool((torch.where(kept > 0, kept, torch.inf).amin(-1) > values[:, -1]).all())


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the index at which the running sum of ``weights`` ``[rows, n]`` exceeds ``uniform`` ``[rows, 1]`` of the
    total.

    Works in blocks, so that only their sums and one block of each row are added in float64.
    """
    rows, width = weights.shape
    blocks = F.pad(weights, (0, -width % BLOCK)).view(rows, -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # [rows, blocks]
    target = uniform * sums[:, -1:]
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[-1] - 1)  # [rows, 1]
    inside = blocks[torch.arange(rows, device=weights.device), block[:, 0]].double().cumsum(-1)  # [rows, BLOCK]
    remaining = target - sums.gather(1, block) + inside[:, -1:]
    index = block * BLOCK + torch.searchsorted(inside, remaining, right=True).clamp_(max=BLOCK - 1)
    return index[:, 0].clamp_(max=width - 1)
