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

from sglang_plug import LogprobOptions, Request, SamplingParams
from sglang_plug.engine import sampler
from sglang_plug.engine.sampler import count, sample
from sglang_plug.engine.sequence import Sequence

VOCABULARY = 97


def make(*, prompt: tuple[int, ...] = (1, 2, 3), logprobs: LogprobOptions | None = None, **params: Any) -> Sequence:
    request = Request(id="r", tokens=prompt, params=SamplingParams(**params), logprobs=logprobs)
    return Sequence.of(request, 1 << 20)


def logits_of(rows: int = 1, seed: int = 0, width: int = VOCABULARY) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def draw(logits: Tensor, sequences: list[Sequence]) -> list[int]:
    return sample(logits.clone(), sequences)[0]


def support(logits: Tensor, trials: int = 400, **params: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    rows = [make(seed=seed, **params) for seed in range(trials)]
    found.update(draw(logits.expand(trials, -1), rows))
    return found


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
    seen = support(logits, **params)
    assert set(seen) <= allowed
    likely = {token for token in allowed if expected.softmax(-1)[0, token] > 0.05}
    assert likely <= set(seen)


def test_frequencies_follow_the_distribution() -> None:
    logits = logits_of(width=8)
    trials = 4000
    found = support(logits, trials, temperature=1.3)
    expected = (logits / 1.3).softmax(-1)[0]
    for token, probability in enumerate(expected.tolist()):
        assert found[token] / trials == pytest.approx(probability, abs=0.03)


def test_a_flat_distribution_wider_than_the_candidates_is_sorted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "CANDIDATES", 4)
    logits = torch.zeros(1, VOCABULARY)
    found = support(logits, 600, top_p=0.5)
    assert len(found) > 30  # about half of the vocabulary, far more than the four candidates


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
    tokens, found = sample(logits.clone(), [row])
    assert tokens == [3] and found[0] is not None
    assert found[0].logprob == pytest.approx(own[3].item())
    assert [token for token, _ in found[0].top] == own.topk(2).indices.tolist()
    assert [value for _, value in found[0].ids] == pytest.approx(own[[8, 9]].tolist())


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
    sampled, forced = make(frequency_penalty=0.5), make(frequency_penalty=0.5)
    logits = torch.zeros(1, VOCABULARY)
    for one in (sampled, forced):
        draw(logits, [one])
    sampled.counts = None
    sampled.tokens += [7, 7, 9]
    forced.counts.zero_()
    count(forced, (7, -1, 7, 9))
    draw(logits, [sampled])
    assert sampled.counts is not None
    assert forced.counts[0, [7, 9]].tolist() == [2.0, 1.0]
    count(make(), (7,))
