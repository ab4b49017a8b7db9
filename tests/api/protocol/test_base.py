"""Tests of the base class of bodies: strict numbers, and unknown fields that would have no effect."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sglang_plug_api.answers.errors import ApiError, from_validation
from sglang_plug_api.protocol.base import Integer, Many, Number, Prompts, RequestBody, TokenId, refuse
from sglang_plug_api.protocol.misplaced import EVERYWHERE


class Body(RequestBody):
    number: Number | None = None
    integer: Integer | None = None
    token: TokenId | None = None
    extra: Any = None


@pytest.mark.parametrize(
    "fields",
    [
        {"number": True}, {"number": float("nan")}, {"number": float("inf")}, {"number": "x"}, {"integer": True},
        {"integer": 1.5}, {"integer": 1 << 63}, {"integer": -(1 << 63) - 1}, {"token": -1}, {"token": 1 << 63},
        {"token": False},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_number(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Body.model_validate(fields)


class Prompted(RequestBody):
    prompts: Prompts


@pytest.mark.parametrize("prompts", [[{"text": "a"}], {"text": "a"}, 5], ids=str)
def test_what_is_no_prompt_is_told_what_is(prompts: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Prompted.model_validate({"prompts": prompts})
    error = from_validation(caught.value)
    assert error.param == "prompts" and "a list of texts, a list of token ids" in str(error)


def test_numbers() -> None:
    body = Body.model_validate({"number": 1, "integer": (1 << 63) - 1, "token": 0})
    assert (body.number, body.integer, body.token) == (1.0, (1 << 63) - 1, 0)


@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_fields_of_other_servers_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Body.model_validate({name: "x"})
    assert name in str(caught.value) and EVERYWHERE[name] in str(caught.value)
    Body.model_validate({name: None})
    Body.model_validate({name: False})


def test_unknown_fields_pass() -> None:
    assert Body.model_validate({"metadata": {"a": 1}}).model_extra == {"metadata": {"a": 1}}


def test_refuse() -> None:
    for nothing in (None, False, [], {}, ""):
        refuse(Body(extra=nothing), "extra")
    for something in (True, [1], {"a": 1}, "x", 5):
        with pytest.raises(ApiError, match="extra is not supported by this server; do that") as caught:
            refuse(Body(extra=something), "extra", remedy="do that")
        assert caught.value.param == "extra"


class Given(RequestBody):
    prompts: Prompts | None = None
    many: Many[str] | None = None


@pytest.mark.parametrize("prompts", ["a", ["a", ""], [1, 2], [[1], [2, 3]], []], ids=str)
def test_forms_of_prompts(prompts: Any) -> None:
    assert Given.model_validate({"prompts": prompts}).prompts == prompts


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (5, "prompts: must be a text, a list of texts, a list of token ids, or a list of such lists"),
        (["a", 5], "prompts.1: Input should be a valid string"),
        ([1, "a"], "prompts.1: Input should be a valid integer"),
        ([1, True], "prompts.1: Input should be a valid integer"),
        ([[1], [-1]], "prompts.1.0: Input should be greater than or equal to 0"),
        ([[1], "a"], "prompts.1: Input should be a valid list"),
    ],
    ids=str,
)
def test_prompts_are_told_apart_by_their_first_entry(prompts: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Given.model_validate({"prompts": prompts})
    assert from_validation(caught.value).message == message


@pytest.mark.parametrize("wrong", [{"many": [1] * 9}, {"prompts": [None] * 9}, {"prompts": [[None] * 9] * 9}], ids=str)
def test_a_list_is_read_until_its_first_wrong_entry(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Given.model_validate(wrong)
    assert caught.value.error_count() == 1


def test_lists_are_bounded() -> None:
    with pytest.raises(ValidationError, match="at most 65536"):
        Given.model_validate({"prompts": ["a"] * 65537})
