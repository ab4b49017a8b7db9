"""Log-probabilities that requests ask for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import LogprobOptions
from sglang_plug.engine.sampling.logprobs import logprobs_of, queue_logprobs

WIDTH = 7
options = st.builds(
    LogprobOptions,
    top=st.integers(0, WIDTH + 3),
    ids=st.lists(st.integers(0, WIDTH - 1), max_size=3).map(tuple),
    ranks=st.booleans(),
)


@given(st.lists(st.tuples(options, st.integers(0, WIDTH - 1)), min_size=1, max_size=5), st.integers(0, 99))
def test_each_row_gets_what_it_asked_for(rows: list[tuple[LogprobOptions, int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(len(rows), WIDTH, generator=generator).log_softmax(-1)
    reports = logprobs_of(logprobs, [token for _, token in rows], [option for option, _ in rows])
    for (option, token), row, report in zip(rows, logprobs.tolist(), reports, strict=True):
        order = sorted(range(WIDTH), key=lambda index: -row[index])
        assert (report.token, report.logprob) == (token, row[token])
        assert list(report.top) == [(index, row[index]) for index in order[: option.top]]
        assert list(report.ids) == [(index, row[index]) for index in option.ids]
        assert report.rank == (order.index(token) + 1 if option.ranks else None)


def test_a_token_that_is_not_a_number_has_no_rank() -> None:
    logprobs = torch.full((1, WIDTH), float("nan"))
    (report,) = queue_logprobs(logprobs, torch.tensor([2]), [LogprobOptions(ranks=True)]).read([2])
    assert report.rank is None


@pytest.mark.parametrize("tokens", [[3, 3], [0, 6]])
def test_equal_tokens_share_the_best_rank(tokens: list[int]) -> None:
    reports = logprobs_of(torch.zeros(2, WIDTH), tokens, [LogprobOptions(ranks=True)] * 2)
    assert [report.rank for report in reports] == [WIDTH, WIDTH]
