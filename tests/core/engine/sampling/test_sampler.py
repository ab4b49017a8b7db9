from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from sglang_plug import Kernels, LogprobOptions, Request, SamplingOptions, SamplingParams
from sglang_plug.engine.sampling.logprobs import logprobs_of, queue_logprobs
from sglang_plug.engine.sampling.sampler import Sampler
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.sampling import CANDIDATES, sample_tokens

from .sampling_cases import read, sample, sequence_of

VOCABULARY = 97


def make(*, prompt: tuple[int, ...] = (1, 2, 3), logprobs: LogprobOptions | None = None, **params: Any) -> Sequence:
    request = Request(id="r", tokens=prompt, params=SamplingParams(**params), logprobs=logprobs)
    return sequence_of(request, VOCABULARY)


def logits_of(rows: int = 1, seed: int = 0, width: int = VOCABULARY) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: Tensor, sequences: list[Sequence]) -> list[int]:
    return sample(logits.clone(), sequences)[0]


def support(logits: Tensor, trials: int = 400, **params: Any) -> Counter[int]:
    counts: Counter[int] = Counter()
    rows = [make(seed=seed, **params) for seed in range(trials)]
    counts.update(draw(logits.expand(trials, -1), rows))
    return counts


def test_greedy_takes_the_largest() -> None:
    logits = logits_of(4)
    assert draw(logits, [make(temperature=0.0) for _ in range(4)]) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.6}])
def test_truncation_keeps_what_transformers_keeps(params: dict[str, Any]) -> None:
    logits = logits_of()
    expected = logits.clone()
    ids = torch.zeros(1, 1, dtype=torch.int64)
    if "top_k" in params:
        expected = TopKLogitsWarper(params["top_k"])(ids, expected)
    if "top_p" in params:
        expected = TopPLogitsWarper(params["top_p"])(ids, expected)
    if "min_p" in params:
        expected = MinPLogitsWarper(params["min_p"])(ids, expected)
    allowed = set(expected.isfinite().nonzero()[:, 1].tolist())
    sampled = support(logits, **params)
    assert set(sampled) <= allowed
    likely = {token for token in allowed if expected.softmax(-1)[0, token] > 0.05}
    assert likely <= set(sampled)


def test_frequencies_follow_the_distribution() -> None:
    logits = logits_of(width=8)
    trials = 4000
    counts = support(logits, trials, temperature=1.3)
    expected = (logits / 1.3).softmax(-1)[0]
    for token, probability in enumerate(expected.tolist()):
        assert counts[token] / trials == pytest.approx(probability, abs=0.03)


def test_a_flat_distribution_wider_than_the_candidates_is_sorted_whole() -> None:
    logits = torch.zeros(1, 2 * CANDIDATES)
    counts = support(logits, 2000, top_p=0.9)
    assert len(counts) > CANDIDATES  # most of the vocabulary, more than what is sorted first


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=6, unique=True), st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_a_seed_gives_the_same_token_whatever_else_is_in_the_batch(seeds: list[int], where: int) -> None:
    logits = logits_of(len(seeds), seed=where)
    kinds: list[dict[str, Any]] = [{"temperature": 0.9}, {"top_p": 0.8}, {"top_k": 3}, {"temperature": 0.0}]
    rows = [make(seed=seed, **kinds[index % 4]) for index, seed in enumerate(seeds)]
    together = draw(logits, rows)
    alone = [draw(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    assert together == alone


def test_penalties_match_transformers_and_openai() -> None:
    logits = logits_of()
    row = make(prompt=(5, 6), temperature=0.0, repetition_penalty=1.7)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[5, 6]]), logits.clone())
    assert draw(logits, [row]) == expected.argmax(-1).tolist()

    flat = torch.zeros(1, VOCABULARY)
    flat[0, 10], flat[0, 11] = 1.0, 0.9
    row = make(temperature=0.0, frequency_penalty=0.2)
    produced = []
    for _ in range(4):
        token = draw(flat, [row])[0]
        row.tokens.append(token)
        produced.append(token)
    assert produced == [10, 11, 10, 11]


def test_bias_and_min_new_tokens() -> None:
    logits = logits_of()
    best = int(logits.argmax())
    assert draw(logits, [make(temperature=0.0, logit_bias={7: 100.0})]) == [7]
    early = make(temperature=0.0, stop_token_ids=(best,), min_new_tokens=1)
    assert draw(logits, [early]) != [best]
    early.tokens.append(0)
    assert draw(logits, [early]) == [best]


def test_logprobs_are_the_models_own() -> None:
    logits = logits_of()
    own = logits.log_softmax(-1)[0]
    row = make(temperature=0.5, logit_bias={3: 50.0}, logprobs=LogprobOptions(top=2, ids=(8, 9)))
    tokens, logprobs = sample(logits.clone(), [row])
    assert tokens == [3] and logprobs[0] is not None
    assert logprobs[0].logprob == pytest.approx(own[3].item())
    assert [token for token, _ in logprobs[0].top] == own.topk(2).indices.tolist()
    assert [value for _, value in logprobs[0].ids] == pytest.approx(own[[8, 9]].tolist())


def test_ranks_are_counted_where_they_are_requested() -> None:
    logits = logits_of(4)
    logits[1] = 0.0
    logits[2, 7] = logits[2].max() + 1
    options = [LogprobOptions(ranks=True, top=2), LogprobOptions(ranks=True), LogprobOptions(ranks=True)]
    chosen = [5, 6, 7, 8]
    described = logprobs_of(logits.log_softmax(-1), chosen, [*options, LogprobOptions(top=2)])
    order = logits[0].argsort(descending=True).tolist()
    width = logits.shape[-1]
    assert [entry.rank for entry in described] == [order.index(5) + 1, width, 1, None], "equally likely tokens count"
    logits[0] = float("nan")
    assert logprobs_of(logits.log_softmax(-1), chosen, [options[1]] * 4)[0].rank is None
    assert not queue_logprobs(logits, torch.tensor(chosen), [LogprobOptions()] * 4).fetched.tensors[-1].numel()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_does_not_hurt_the_others(bad: float) -> None:
    logits = logits_of(2)
    good = draw(logits[:1], [make(seed=1)])
    logits[1, 5] = bad
    assert draw(logits, [make(seed=1), make(seed=2)]) == [*good, -1]


def test_params_are_checked() -> None:
    for wrong in ({"temperature": float("nan")}, {"top_p": 0.0}, {"min_new_tokens": 9, "max_new_tokens": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SamplingParams(**wrong)  # type: ignore[arg-type]
    assert replace(SamplingParams(), temperature=1e-7).greedy


def test_forced_tokens_count_for_penalties() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [5, 6, 7, 9]] = torch.tensor([4.0, 3.9, 3.8, 3.7])
    once, followed = make(temperature=0.0, frequency_penalty=0.5), make(temperature=0.0, frequency_penalty=0.5)
    sampler = Sampler()
    (first,) = read(sampler.sample(logits.clone(), [followed]))[0]
    tokens = [first, 6, 6, 9]  # all but the first are forced
    followed.tokens += tokens
    once.tokens += tokens
    assert (
        read(sampler.sample(logits.clone(), [followed]))
        == read(Sampler().sample(logits.clone(), [once]))
        == ([7], [None])
    )


def test_a_token_that_was_not_taken_does_not_count() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [5, 6]] = torch.tensor([4.0, 3.9])
    sequence, sampler = make(temperature=0.0, frequency_penalty=0.5), Sampler()
    assert [read(sampler.sample(logits.clone(), [sequence]))[0] for _ in range(3)] == [[5]] * 3


def test_sampling_ahead_is_like_sampling_when_its_tokens_are_known() -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.5},
        {"top_p": 0.9, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
        {"temperature": 0.0, "presence_penalty": 1.0},
        {"min_new_tokens": 2, "stop_token_ids": tuple(range(0, VOCABULARY, 2))},
    ]
    steps = [logits_of(len(kinds), seed=step) for step in range(4)]
    known = [make(seed=row, logprobs=LogprobOptions(top=1), **kind) for row, kind in enumerate(kinds)]
    ahead = [make(seed=row, logprobs=LogprobOptions(top=1), **kind) for row, kind in enumerate(kinds)]
    expected = []
    for logits in steps:
        expected.append(sample(logits.clone(), known))
        for sequence, token in zip(known, expected[-1][0], strict=True):
            sequence.tokens.append(token)
    sampler, results = Sampler(), []
    before = sampler.sample(steps[0].clone(), ahead)
    for logits in steps[1:]:
        # before the results of the last step are read
        after = sampler.sample(logits.clone(), ahead, ahead=[1] * len(ahead))
        results.append(read(before))
        for sequence, token in zip(ahead, results[-1][0], strict=True):
            sequence.tokens.append(token)
        before = after
    assert [*results, read(before)] == expected
    assert all(token % 2 for row in expected[:2] for token in row[0][3:])


def test_penalties_follow_a_sequence_from_batch_to_batch() -> None:
    sampler = Sampler()
    logits = torch.zeros(2, VOCABULARY)
    logits[:, 10], logits[:, 11] = 1.0, 0.9
    first, second = make(temperature=0.0, frequency_penalty=0.2), make(temperature=0.0, frequency_penalty=0.2)
    produced: dict[int, list[int]] = {0: [], 1: []}
    for batch in ([first], [first, second], [first, second], [second], [second, first], [first]):
        tokens = read(sampler.sample(logits[: len(batch)].clone(), batch))[0]
        for sequence, token in zip(batch, tokens, strict=True):
            sequence.tokens.append(token)
            produced[0 if sequence is first else 1].append(token)
    assert produced == {0: [10, 11, 10, 11, 10], 1: [10, 11, 10, 11]}


def test_nothing_is_prepared_again_while_the_batch_stays() -> None:
    prepared = list[SamplingOptions]()

    def sample_and_note(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
        if not prepared or prepared[-1] is not options:
            prepared.append(options)
        return sample_tokens(logits, options, uniform)

    sampler, rows = Sampler(Kernels(sample_tokens=sample_and_note)), [make(), make(top_k=3)]
    for batch in (rows, tuple(rows), rows[::-1], rows[:1], rows[:1]):
        sampler.sample(logits_of(len(batch)), batch)
    sampler.sample(logits_of(width=VOCABULARY + 1), rows[:1])
    params = tuple(row.request.params for row in rows)
    assert [options.params for options in prepared] == [params, params[::-1], params[:1], params[:1]]


@given(st.integers(0, 50), st.lists(st.sampled_from([1, 2, 3, 7, 40, -1]), min_size=2, max_size=5))
@settings(max_examples=30, deadline=None)
def test_equally_likely_tokens_do_not_make_a_row_depend_on_others(where: int, limits: list[int]) -> None:
    logits = logits_of(len(limits), seed=where, width=400).round()
    rows = [make(seed=row + where, top_k=limit, top_p=0.8, temperature=2.0) for row, limit in enumerate(limits)]
    together = draw(logits, rows)
    assert together == [draw(logits[row : row + 1], [sequence])[0] for row, sequence in enumerate(rows)]


def test_a_tiny_top_p_keeps_the_likeliest_and_not_everything() -> None:
    logits = logits_of()
    assert set(support(logits, top_p=1e-300)) == {int(logits.argmax())}


def test_an_endless_temperature_draws_only_what_is_allowed() -> None:
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, 5:8] = torch.tensor([1.0, 2.0, 3.0])
    assert set(support(logits, temperature=1e308)) == {5, 6, 7}


@pytest.mark.parametrize("params", [{"repetition_penalty": 1e-308}, {"logit_bias": {3: 1e308}}], ids=str)
def test_numbers_beyond_float32_leave_logits_that_can_be_sampled_from(params: dict[str, Any]) -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 3] = 2.0
    assert draw(logits, [make(temperature=0.0, **params)]) == [3]
