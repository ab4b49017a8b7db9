"""Errors of msgspec in plain words, with the path of the field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from sglang_plug.system.field_errors import field_error


class Inner(msgspec.Struct):
    token: int


class Fields(msgspec.Struct):
    count: int = 0
    share: Annotated[float, Meta(gt=0)] = 1.0
    number: Annotated[int, Meta(ge=1)] = 1
    items: Annotated[list[int], Meta(min_length=1)] = []
    word: Annotated[str, Meta(min_length=2, pattern="^a")] = "ab"
    maybe: int | None = None
    mode: Literal["a", "b"] = "a"
    table: dict[str, int] = {}
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": "x"}, "count must be an integer, not text"),
        ({"count": True}, "count must be an integer, not true or false"),
        ({"maybe": []}, "maybe must be an integer or null, not a list"),
        ({"share": 0.0}, "share must be more than 0"),
        ({"number": 0}, "number must be at least 1"),
        ({"items": []}, "items must have at least 1 item"),
        ({"items": [1, "x"]}, "items[1] must be an integer, not text"),
        ({"word": "a"}, "word must have at least 2 characters"),
        ({"word": "bb"}, "word must be text that matches the regular expression '^a'"),
        ({"mode": "c"}, "mode cannot be 'c'"),
        ({"table": {"a": "x"}}, "table[...] must be an integer, not text"),
        ({"table": {1: 2}}, "table must be text, not an integer"),
        ({"inner": {}}, "inner.token is missing"),
        ({"inner": 5}, "inner must be an object or null, not an integer"),
    ],
)
def test_each_kind_of_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(values, Fields)
    assert str(field_error(caught.value)) == message
    assert field_error(caught.value).path == message.split(" ")[0]


def test_a_text_of_the_class_itself_is_kept() -> None:
    assert str(field_error(ValueError("count must be even"), "count")) == "count must be even"
    assert str(field_error(ValueError("it is odd"), "count")) == "count: it is odd"
    assert str(field_error(ValueError("it is odd"))) == "it is odd"
