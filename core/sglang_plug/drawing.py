"""From logits to tokens: what a kernel set may replace of it, defined in torch.

None of this waits for a device that computes by itself. On a CPU, where there is nothing to wait for, looking at the
numbers first saves most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from .sampling import SamplingParams

CANDIDATES = 1024
"""Top-p is first tried among this many tokens."""
ALIKE = 64
"""So many more than top-k are tried, as others may be as likely as the last of them."""
WIDER = 16
"""How many times as many are tried if they hold too little; where these are all, they are sorted."""
SMALLEST, LARGEST = 1e-30, 1e30
"""What float32 holds with room for arithmetic: of numbers beyond, 0 would switch a limit off and infinity make NaN."""
BLOCK = 512
"""Probabilities added up in float64 at once."""


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How the tokens of some rows are drawn: for the host, and as tensors on the device of their logits."""

    params: tuple[SamplingParams, ...]
    """Each row's; none is greedy."""
    temperature: Tensor
    """``[rows]`` float32."""
    top_k: Tensor
    """``[rows]`` int32; as wide as the vocabulary where it is off."""
    top_p: Tensor
    """``[rows]`` float32."""
    min_p: Tensor
    """``[rows]`` float32."""
    cut: tuple[int, ...]
    """Rows with a top-k, top-p or min-p."""
    cut_index: Tensor | None
    """The same, int64; ``None`` if it is none or all of them."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], vocabulary: int, send: Callable[[Tensor], Tensor]) -> DrawOptions:
        """For ``params``, one per row; ``send`` brings a tensor from the host to the device."""
        limits = [min(one.top_k, vocabulary) if one.top_k > 0 else vocabulary for one in params]
        columns = [[min(one.temperature, LARGEST) for one in params], limits]
        columns += [[max(one.top_p, SMALLEST) for one in params], [one.min_p for one in params]]
        temperature, top_k, top_p, min_p = send(torch.tensor(columns, dtype=torch.float64)).unbind()
        cut = [row for row, one in enumerate(params) if one.top_k > 0 or one.top_p < 1.0 or one.min_p > 0.0]
        index = send(torch.tensor(cut)) if 0 < len(cut) < len(params) else None
        numbers = (temperature.float(), top_k.to(torch.int32), top_p.float(), min_p.float())
        return cls(tuple(params), *numbers, tuple(cut), index)


def draw_tokens(logits: Tensor, options: DrawOptions, uniform: Tensor) -> Tensor:
    """``[rows]`` int64: a token of each row, drawn from softmax after temperature, top-k, top-p and min-p.

    Top-k keeps the ``k`` likeliest tokens. Top-p keeps, of these and likeliest first, those before which less than
    ``top_p`` of what they hold together has come. Min-p keeps what is at least ``min_p`` as likely as the likeliest.
    Of equally likely tokens those with the lowest ids are kept. In which order the tokens share the numbers in [0, 1)
    among them is a kernel's own. A row's token may depend on nothing of other rows. Rows that are not finite give any
    token.

    Args:
        logits: ``[rows, vocabulary]`` float32, -inf for what may not be drawn.
        options: one entry for each row.
        uniform: ``[rows]`` float64 in [0, 1), which decides.
    """
    uniform = uniform[:, None]
    probs = (logits / options.temperature[:, None]).softmax(-1)
    if not options.cut:
        return _pick(probs, uniform)
    everything = range(len(options.params))
    if len(options.cut) == len(everything):
        return _draw_cut(probs, options, uniform)
    tokens, index = _pick(probs, uniform), options.cut_index
    assert index is not None
    part = DrawOptions(
        tuple(options.params[row] for row in options.cut),
        options.temperature[index],
        options.top_k[index],
        options.top_p[index],
        options.min_p[index],
        tuple(range(len(options.cut))),
        None,
    )
    return tokens.index_copy(0, index, _draw_cut(probs[index], part, uniform[index]))


def mask_logits(logits: Tensor, rows: Tensor | None, mask: Tensor) -> Tensor:
    """float32 ``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them.

    Args:
        logits: what is masked.
        rows: int64 ``[n]``, the row of each mask, each but once; ``None`` if there is one for every row, in order.
        mask: int32 ``[n, words]`` on the same device: a token's bit is bit ``token % 32`` of word ``token // 32``.
    """
    barred = bar(mask, logits.shape[-1])
    return logits.add_(barred) if rows is None else logits.index_add_(0, rows, barred)


def bar(mask: Tensor, width: int) -> Tensor:
    """int32 ``[rows, words]`` to float32 ``[rows, width]``: 0 for what is allowed, else -inf.

    To be added: on a CPU that is twenty times as fast as filling. Tokens beyond the mask are not allowed.
    """
    octets = mask.view(torch.uint8).to(torch.int32)
    barred = F.embedding(octets, _table(mask.device)).flatten(1)
    if barred.shape[-1] < width:
        barred = F.pad(barred, (0, width - barred.shape[-1]), value=-torch.inf)
    return barred[:, :width]


@cache
def _table(device: torch.device) -> Tensor:
    """``[256, 8]``: for each byte what to add for its eight bits, lowest first."""
    octets = torch.arange(256, dtype=torch.int32, device=device)[:, None]
    bits = (octets >> torch.arange(8, dtype=torch.int32, device=device)) & 1
    return torch.zeros(256, 8, device=device).masked_fill_(bits == 0, -torch.inf)


def _draw_cut(probs: Tensor, options: DrawOptions, uniform: Tensor) -> Tensor:
    tokens = probs.new_empty(len(probs), dtype=torch.int64)
    for values, indices in _candidates(probs, options.params):
        kept = _keep(values, probs, options)
        if values.shape[-1] == probs.shape[-1] or _is_settled(values, kept):
            tokens = indices.gather(1, _pick(kept, uniform)[:, None])[:, 0]
            break
    return tokens


def _candidates(probs: Tensor, params: Sequence[SamplingParams]) -> Iterator[tuple[Tensor, Tensor]]:
    """Probabilities and tokens, likeliest first and of equals the lowest token first: ever more, in the end all."""
    if probs.device.type == "cpu":
        most = max(one.top_k + ALIKE if one.top_k > 0 else CANDIDATES for one in params)
        while most < probs.shape[-1]:
            tokens = probs.topk(most, dim=-1, sorted=False).indices.sort(dim=-1).values
            values, order = probs.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
            yield values, tokens.gather(1, order)
            most *= WIDER
    yield probs.sort(dim=-1, descending=True, stable=True)


def _keep(values: Tensor, probs: Tensor, options: DrawOptions) -> Tensor:
    """Candidates' probabilities, zero for those that are cut off. No row's depend on how many candidates there are."""
    vocabulary, width = probs.shape[-1], values.shape[-1]
    top_k, top_p, min_p = options.top_k[:, None].long(), options.top_p[:, None], options.min_p[:, None]
    running = values.cumsum(-1)
    # the mass that top-p is a share of: what top-k left, or everything where there is no top-k
    left = running.gather(1, top_k.clamp(max=width) - 1)
    mass = torch.where(top_k < vocabulary, left, probs.sum(-1, keepdim=True))
    kept = values.masked_fill(torch.arange(width, device=probs.device) >= top_k, 0.0)
    kept = kept.masked_fill(running - values >= top_p * mass, 0.0)
    return kept.masked_fill(values < min_p * values[:, :1], 0.0)


def _is_settled(values: Tensor, kept: Tensor) -> bool:
    """True if no token that is no candidate is as likely as one that is kept. Looks at the values."""
    return bool((torch.where(kept > 0, kept, torch.inf).amin(-1) > values[:, -1]).all())


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """The index at which the running sum of ``weights`` ``[rows, n]`` passes ``uniform`` ``[rows, 1]`` of it.

    In blocks, so that only their sums and one block of each row are added up in float64.
    """
    rows, width = weights.shape
    blocks = F.pad(weights, (0, -width % BLOCK)).view(rows, -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # [rows, blocks]
    target = uniform * sums[:, -1:]
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[-1] - 1)  # [rows, 1]
    inside = blocks[torch.arange(rows, device=weights.device), block[:, 0]].double().cumsum(-1)  # [rows, BLOCK]
    left = target - sums.gather(1, block) + inside[:, -1:]
    index = block * BLOCK + torch.searchsorted(inside, left, right=True).clamp_(max=BLOCK - 1)
    return index[:, 0].clamp_(max=width - 1)
