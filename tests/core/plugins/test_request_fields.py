"""Conversion of the request fields of one logits processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sglang_plug.plugins.request_fields import ComponentRequestFields, RequestFieldError


@dataclass
class Inner:
    number: int = 0


@dataclass
class Fields:
    numbers: list[int] = field(default_factory=list)
    lists: list[list[int]] = field(default_factory=list)
    objects: list[Inner] = field(default_factory=list)


class Unread(list[int]):
    """A list that no Python code may iterate over; msgspec reads it without an iterator."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the list is searched")


def test_lists_of_numbers_are_not_searched_for_unknown_fields() -> None:
    """Lists of numbers are not searched, because they may have millions of entries."""
    values = {"numbers": Unread([1, 2]), "lists": [Unread([3])], "objects": [{"number": 4}]}
    assert ComponentRequestFields.convert(Fields, values) == Fields([1, 2], [[3]], [Inner(4)])


def test_unknown_fields_of_objects_in_lists_are_named_with_their_path() -> None:
    with pytest.raises(RequestFieldError, match="there is no such field") as caught:
        ComponentRequestFields.convert(Fields, {"objects": [{"number": 1}, {"nunber": 2}]})
    assert caught.value.field == "objects.1.nunber"
