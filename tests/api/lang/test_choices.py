"""Tests of the three methods of choosing, with hand-made log-probabilities."""

from __future__ import annotations

import pytest

from sglang_plug_lang.choices import (
    ScoredChoice,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

SHORT = ScoredChoice("short", (1,), (-1.0,), (-3.0,))
LONG = ScoredChoice("long", (2, 3, 4), (-1.4, -0.1, -0.3), (0.0, -0.2, -0.4))


def test_the_mean_does_not_punish_length() -> None:
    decision = token_length_normalized.decide([SHORT, LONG])
    assert decision.choice == "long"
    assert decision.meta_info["scores"] == pytest.approx([-1.0, -0.6])
    assert decision.meta_info["input_token_logprobs"][0] == [(-1.0, 1)]
    assert decision.meta_info["choices"] == ["short", "long"]


def test_greedy_looks_at_one_token_after_the_other() -> None:
    assert greedy_token_selection.decide([SHORT, LONG]).choice == "short"


def test_greedy_follows_equal_tokens_whatever_rounding_says() -> None:
    first = ScoredChoice("first", (1, 2), (-0.5000001, -0.1))
    second = ScoredChoice("second", (1, 3), (-0.5, -0.9))
    assert greedy_token_selection.decide([first, second]).choice == "first"


def test_greedy_lets_a_choice_that_ended_go_on_with_its_mean() -> None:
    prefix = ScoredChoice("a", (1,), (-0.2,))
    unlikely = ScoredChoice("a b", (1, 2), (-0.2, -0.9))
    likely = ScoredChoice("a c", (1, 3), (-0.2, -0.05))
    assert greedy_token_selection.decide([prefix, unlikely]).choice == "a"
    assert greedy_token_selection.decide([prefix, unlikely, likely]).choice == "a c"


def test_unconditional_takes_what_the_prompt_makes_likelier() -> None:
    assert unconditional_likelihood_normalized.needs_unconditional
    decision = unconditional_likelihood_normalized.decide([SHORT, LONG])
    assert decision.choice == "short"
    assert decision.meta_info["scores"] == pytest.approx([2.0, -0.4])
    assert decision.meta_info["unconditional_token_logprobs"] == [[-3.0], [0.0, -0.2, -0.4]]


def test_the_first_of_equals_wins() -> None:
    same = ScoredChoice("same", (1,), (-1.0,))
    for method in (token_length_normalized, greedy_token_selection):
        assert method.decide([SHORT, same]).choice == "short"


LOGPROBS = {
    "choices": ["short", "long"],
    "normalized_prompt_logprobs": [-1.0, -0.6],
    "input_token_logprobs": [[[-1.0, 1, None]], [[-1.4, 2, None], [-0.1, 3, None], [-0.3, 4, None]]],
    "output_token_logprobs": [[], []],
    "unconditional_token_logprobs": [[[None, 1, None]], [[None, 2, None], [-0.2, 3, None], [-0.4, 4, None]]],
}


def test_methods_can_be_called_with_log_probabilities_of_generate() -> None:
    assert token_length_normalized(**LOGPROBS).decision == "long"
    assert token_length_normalized(**{**LOGPROBS, "normalized_prompt_logprobs": [-0.1, -0.6]}).decision == "short"
    greedy = greedy_token_selection(**LOGPROBS)
    assert greedy.decision == "short"
    assert greedy.meta_info["greedy_logprob_matrix"] == [[-1.0, -1.0, -1.0], [-1.4, -0.1, -0.3]]
    advantage = unconditional_likelihood_normalized(**LOGPROBS)
    assert advantage.decision == "long"
    assert advantage.meta_info["normalized_unconditional_prompt_logprobs"] == pytest.approx([-1.0, -0.4])


def test_a_call_without_unconditional_log_probabilities_is_refused() -> None:
    with pytest.raises(ValueError, match="unconditional_token_logprobs"):
        unconditional_likelihood_normalized(**{**LOGPROBS, "unconditional_token_logprobs": None})
