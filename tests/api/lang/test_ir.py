"""Tests of expressions, which are compared by value, and of options with defaults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_lang import assistant, gen, gen_int, gen_string, image, select, separate_reasoning, user
from sglang_plug_lang.ir import Concatenation, Generate, GenerationOptions, Text, parts, variables

PIECES = st.lists(st.one_of(st.text(), st.from_regex("[a-z]{1,8}", fullmatch=True).map(gen)), min_size=1)


@given(PIECES, PIECES, PIECES)
def test_joining_is_associative_and_keeps_every_part(first: Any, second: Any, third: Any) -> None:
    def joined(values: Any) -> Any:
        expression: Any = gen("start")
        for value in values:
            expression = expression + value
        return expression

    a, b, c = joined(first), joined(second), joined(third)
    assert (a + b) + c == a + (b + c)
    expected = [gen("start"), *(Text(part) if isinstance(part, str) else part for part in first)]
    assert list(parts(a)) == expected
    assert not any(isinstance(part, Concatenation) for part in parts((a + b) + c))


def test_text_joins_on_both_sides() -> None:
    assert parts("a" + gen("x") + "b" + "c") == (Text("a"), gen("x"), Text("b"), Text("c"))


@pytest.mark.parametrize("wrong", [None, 3, ["a"], b"a"])
def test_other_things_do_not_join(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"use str\(\)"):
        _ = gen("x") + wrong


def test_names_of_what_will_be_set() -> None:
    expression = user("q") + assistant("a" + gen("x") + gen() + select("y", ["1", "2"]))
    assert list(variables(expression)) == ["x", "y"]
    assert list(variables(separate_reasoning(expression, "qwen3"))) == ["x", "x_reasoning_content", "y"]


def test_own_options_win_over_defaults() -> None:
    defaults = GenerationOptions(max_tokens=5, temperature=0.5, regex="a+")
    own = GenerationOptions(temperature=0.0, json_schema={"type": "object"})
    assert own.over(defaults) == GenerationOptions(max_tokens=5, temperature=0.0, json_schema={"type": "object"})
    assert GenerationOptions().over(defaults) == defaults


def test_options_become_fields_of_generate() -> None:
    options = GenerationOptions(
        max_tokens=3, min_tokens=1, stop=("a", "b"), temperature=0.0, return_logprob=True, top_logprobs_num=2
    )
    assert options.sampling_params() == {
        "max_new_tokens": 3,
        "min_new_tokens": 1,
        "stop": ["a", "b"],
        "temperature": 0.0,
    }
    assert options.result_fields() == {"return_logprob": True, "top_logprobs_num": 2}


def test_every_option_of_gen_arrives() -> None:
    options: dict[str, Any] = {
        "max_tokens": 1,
        "min_tokens": 2,
        "n": 3,
        "stop": "s",
        "stop_token_ids": [4],
        "stop_regex": "t",
        "temperature": 0.5,
        "top_p": 0.6,
        "top_k": 7,
        "min_p": 0.8,
        "frequency_penalty": 0.9,
        "presence_penalty": 1.0,
        "ignore_eos": True,
        "return_logprob": True,
        "logprob_start_len": 1,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "regex": "a",
    }
    assert gen("x", **options) == Generate("x", GenerationOptions(**options))
    schema = {"type": "object"}
    assert gen("x", json_schema=schema) == Generate("x", GenerationOptions(json_schema=schema))


def test_types_are_regular_expressions() -> None:
    import re

    for expression, good, bad in (
        (gen_int("x"), ["0", "-12", "10"], ["", "1.5", "a", "007", "+7"]),
        (gen_string("x"), ['"a b"', '""'], ["a", '"a', '"a\n"']),
        (gen("x", dtype=bool), ["True", "False"], ["true", "1", ""]),
        (gen("x", dtype="float"), ["1", "-1.25", "0.5"], [".", "1.", "00.5"]),
    ):
        assert isinstance(expression, Generate) and expression.options.regex is not None
        assert all(re.fullmatch(expression.options.regex, text) for text in good)
        assert not any(re.fullmatch(expression.options.regex, text) for text in bad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gen("x", regex="a", json_schema="{}"), "exclude"),
        (lambda: gen("x", dtype=int, regex="a"), "excludes"),
        (lambda: gen("x", dtype=list), "int, float, bool or str"),
        (lambda: gen("x", choices=[]), "not empty"),
        (lambda: select("x", ["a", ""]), "not empty"),
        (lambda: select("x", "abc"), "a list of texts"),
        (lambda: select("x"), "a list of texts"),
        (lambda: separate_reasoning(gen("x"), "gpt"), "deepseek-r1"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_missing_image_is_an_error_at_once(tmp_path: Any) -> None:
    with pytest.raises(FileNotFoundError):
        image(tmp_path / "none.png")
