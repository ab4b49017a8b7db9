"""Segment ids of pairs of texts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_models.reranker.scorers import behind_separator

SEPARATORS = (8, 9)
text = st.lists(st.integers(0, 5), max_size=5)
prompt = st.tuples(st.sampled_from(SEPARATORS), st.lists(text, min_size=1, max_size=3)).map(
    lambda pair: [token for part in pair[1] for token in [7, *part, pair[0]]]
)


@given(st.lists(prompt, min_size=1, max_size=5))
def test_each_prompt_as_if_it_were_alone(prompts: list[list[int]]) -> None:
    tokens = torch.tensor([token for entry in prompts for token in entry])
    expected = []
    for item in prompts:
        first = item.index(item[-1])
        expected += [0] * (first + 1) + [1] * (len(item) - first - 1)
    assert behind_separator(tokens, [len(entry) for entry in prompts]).tolist() == expected


def test_a_single_text_has_one_segment() -> None:
    assert behind_separator(torch.tensor([1, 5, 6, 2]), [4]).tolist() == [0, 0, 0, 0]
    assert behind_separator(torch.tensor([1, 5, 2, 6, 2]), [5]).tolist() == [0, 0, 0, 1, 1]
