"""Logits to tokens and log-probabilities, vectorised over the batch.

Ten steps, each skipped when no row needs it:

1. log-probabilities of the model's own distribution, for rows that report them
2. logit bias
3. repetition, frequency and presence penalties
4. stop tokens forbidden before ``min_new_tokens``
5. tokens forbidden that a row's grammar does not allow; its mask knows of step 4
6. greedy rows take the most likely token; a batch of only these ends here
7. temperature
8. top-k, then top-p of what is left, then min-p
9. one number in [0, 1) per row, a function of the row's seed and position alone, picks the token
10. log-probabilities of the picked tokens and their alternatives
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.request import LogprobOptions, TokenLogprob
from sglang_plug.sampling import SamplingParams

from .masks import Allowed
from .sequence import Sequence

CANDIDATES = 1024
"""Top-p is first tried among this many tokens; a full sort follows only if they hold too little."""
BLOCK = 512
"""Probabilities added up in float64 at once."""
_MASK = (1 << 64) - 1


def sample(
    logits: Tensor, sequences: Ordered[Sequence], allowed: Allowed | None = None
) -> tuple[list[int], list[TokenLogprob | None]]:
    """One token for each row of ``logits`` ``[rows, vocabulary]``, and its log-probability if asked for.

    A row whose logits are not finite, or of which nothing is ``allowed``, gets token -1. ``logits`` may be overwritten.
    """
    logits = logits.float()
    reported = [row for row, one in enumerate(sequences) if one.request.logprobs is not None]
    logprobs = logits[reported].log_softmax(-1) if reported else None
    params = [one.request.params for one in sequences]
    logits = _forbid_early_stop(_penalise(_bias(logits, params), sequences), sequences)
    if allowed is not None:
        logits = allowed.apply(logits)
    best = logits.max(-1)
    tokens = best.indices
    drawn = [row for row, one in enumerate(params) if not one.greedy]
    if drawn:
        rows = logits if len(drawn) == len(params) else logits[drawn]
        picked = _draw(rows, [params[row] for row in drawn], [sequences[row] for row in drawn])
        tokens = picked if len(drawn) == len(params) else tokens.index_copy(0, _index(drawn, logits), picked)
    chosen = torch.where(best.values.isfinite(), tokens, -1).tolist()
    for sequence, token in zip(sequences, chosen, strict=True):
        count(sequence, (token,))
    found: list[TokenLogprob | None] = [None] * len(chosen)
    if logprobs is not None:
        options = [sequences[row].request.logprobs or LogprobOptions() for row in reported]
        described = describe(logprobs, [max(0, chosen[row]) for row in reported], options)
        for row, one in zip(reported, described, strict=True):
            found[row] = one
    return chosen, found


def takes_likeliest(sequences: Ordered[Sequence]) -> bool:
    """True if ``sample``, without masks, would do nothing but take the most likely token of each row."""
    for one in sequences:
        params = one.request.params
        if not params.greedy or params.penalised or params.logit_bias or one.request.logprobs is not None:
            return False
        if one.generated < params.min_new_tokens and params.stop_token_ids:
            return False
    return True


def describe(logprobs: Tensor, tokens: Ordered[int], options: Ordered[LogprobOptions]) -> list[TokenLogprob]:
    """What each row reports of ``logprobs`` ``[rows, vocabulary]``: its token's, the likeliest, and named ones."""
    picked = logprobs.gather(1, _index(tokens, logprobs)[:, None])[:, 0].tolist()
    most = min(max(one.top for one in options), logprobs.shape[-1])
    top = logprobs.topk(most, dim=-1) if most else None
    values, indices = (top.values.tolist(), top.indices.tolist()) if top is not None else ([], [])
    result = []
    for row, (token, option) in enumerate(zip(tokens, options, strict=True)):
        likeliest = tuple(zip(indices[row], values[row], strict=True))[: option.top] if option.top else ()
        named: tuple[tuple[int, float], ...] = ()
        if option.ids:
            found = logprobs[row, _index(option.ids, logprobs)].tolist()
            named = tuple(zip(option.ids, found, strict=True))
        result.append(TokenLogprob(token, picked[row], likeliest, named))
    return result


def _index(values: Ordered[int], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _bias(logits: Tensor, params: Ordered[SamplingParams]) -> Tensor:
    for row, one in enumerate(params):
        if one.logit_bias:
            values = torch.tensor(list(one.logit_bias.values()), dtype=logits.dtype, device=logits.device)
            logits[row].index_add_(0, _index(list(one.logit_bias), logits), values)
    return logits


def _penalise(logits: Tensor, sequences: Ordered[Sequence]) -> Tensor:
    rows = [row for row, one in enumerate(sequences) if one.request.params.penalised]
    if not rows:
        return logits
    for row in rows:
        if sequences[row].counts is None:
            sequences[row].counts = _counts(sequences[row], logits)
    params = [sequences[row].request.params for row in rows]

    def column(name: str) -> Tensor:
        return torch.tensor([[getattr(one, name)] for one in params], device=logits.device)

    counts = torch.stack([sequences[row].counts for row in rows])  # [rows, 2, vocabulary]: output, prompt
    output, seen = counts[:, 0], counts.sum(1) > 0
    picked = logits[rows]
    repetition = column("repetition_penalty")
    picked = torch.where(seen, torch.where(picked > 0, picked / repetition, picked * repetition), picked)
    picked = picked - output * column("frequency_penalty") - (output > 0) * column("presence_penalty")
    logits[rows] = picked
    return logits


def _counts(sequence: Sequence, logits: Tensor) -> Tensor:
    """How often each token occurs in the output and in the prompt: ``[2, vocabulary]``."""
    counts = torch.zeros(2, logits.shape[-1], device=logits.device)
    parts = (sequence.tokens[sequence.prompt_len :], sequence.tokens[: sequence.prompt_len])
    for row, part in zip(counts, parts, strict=True):
        row.index_add_(0, _index(part, logits), torch.ones(len(part), device=logits.device))
    return counts


def count(sequence: Sequence, tokens: Ordered[int]) -> None:
    """Let penalties know of tokens that come to an output; negative ones are none."""
    if sequence.counts is not None:
        for token in tokens:
            if token >= 0:
                sequence.counts[0, token] += 1


def _forbid_early_stop(logits: Tensor, sequences: Ordered[Sequence]) -> Tensor:
    for row, one in enumerate(sequences):
        params = one.request.params
        if one.generated < params.min_new_tokens and params.stop_token_ids and one.grammar is None:
            logits[row].index_fill_(0, _index(params.stop_token_ids, logits), -torch.inf)
    return logits


def _draw(logits: Tensor, params: Ordered[SamplingParams], sequences: Ordered[Sequence]) -> Tensor:
    """Steps 7 to 9 for rows that are not greedy: ``[rows]`` token ids."""
    device = logits.device
    temperature = torch.tensor([[one.temperature] for one in params], device=device)
    uniform = torch.tensor([[_uniform(one)] for one in sequences], dtype=torch.float64, device=device)
    probs = (logits / temperature).softmax(-1)
    cut = [row for row, one in enumerate(params) if one.top_k > 0 or one.top_p < 1.0 or one.min_p > 0.0]
    if not cut:
        return _pick(probs, uniform)
    if len(cut) == len(params):
        return _draw_cut(probs, params, uniform)
    tokens = _pick(probs, uniform)
    picked = _draw_cut(probs[cut], [params[row] for row in cut], uniform[cut])
    return tokens.index_copy(0, _index(cut, logits), picked)


def _draw_cut(probs: Tensor, params: Ordered[SamplingParams], uniform: Tensor) -> Tensor:
    device, vocabulary = probs.device, probs.shape[-1]
    limits = [min(one.top_k, vocabulary) if one.top_k > 0 else vocabulary for one in params]
    top_k = torch.tensor(limits, device=device)[:, None]
    top_p = torch.tensor([[one.top_p] for one in params], device=device)
    min_p = torch.tensor([[one.min_p] for one in params], device=device)
    most = max(one.top_k if one.top_k > 0 else CANDIDATES for one in params)
    values, indices = probs.topk(min(most, vocabulary), dim=-1)  # sorted, likeliest first
    if values.shape[-1] < vocabulary and not _suffices(values, params):
        values, indices = probs.sort(dim=-1, descending=True)
    rank = torch.arange(values.shape[-1], device=device)
    values = values.masked_fill(rank >= top_k, 0.0)
    before = values.cumsum(-1) - values
    # the mass that top-p is a share of: what top-k left, or everything where there is no top-k
    mass = torch.where(top_k < vocabulary, values.sum(-1, keepdim=True), probs.sum(-1, keepdim=True))
    values = values.masked_fill(before >= top_p * mass, 0.0)
    values = values.masked_fill(values < min_p * values[:, :1], 0.0)
    return indices.gather(1, _pick(values, uniform)[:, None])[:, 0]


def _suffices(values: Tensor, params: Ordered[SamplingParams]) -> bool:
    """True if the candidates hold everything that every row may draw."""
    width = values.shape[-1]
    totals, last, first = values.sum(-1).tolist(), values[:, -1].tolist(), values[:, 0].tolist()
    return all(
        0 < one.top_k <= width or (one.top_p < 1.0 and total >= one.top_p) or (one.min_p > 0 and low < one.min_p * high)
        for one, total, low, high in zip(params, totals, last, first, strict=True)
    )


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


def _uniform(sequence: Sequence) -> float:
    """A number in [0, 1) from the seed and the position (SplitMix64, Steele et al. 2014)."""
    state = (sequence.seed + (sequence.generated + 1) * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
