"""Answers with long lists are encoded in parts, to the same JSON."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sglang_plug_api.answers.errors import json_bytes
from sglang_plug_api.answers.large_json import (
    PART,
    LargeList,
    large_json_bytes,
    large_json_response,
    plain,
    plain_in_parts,
)


class Counted:
    """Makes an entry for each item, and counts the entries."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, item: int) -> list[Any]:
        self.made += 1
        return [item, "é", {"value": item / 4}]

    def long(self, length: int, weight: int = 1) -> LargeList:
        return LargeList(range(length), self, weight)


@pytest.mark.parametrize("length", [0, 1, PART, PART + 1, 5 * PART])
async def test_the_bytes_are_those_of_plain_json(length: int) -> None:
    entry = Counted()
    for value in (
        {"a": entry.long(length), "b": {"c": [1, 2], "d": {}, "e": []}, "f": [{"g": entry.long(length)}, {}, {"h": 1}]},
        [{"a": entry.long(length)}, {"b": None}],
        entry.long(length),
    ):
        assert await large_json_bytes(value) == json_bytes(plain(value))


async def test_other_requests_are_served_between_the_parts() -> None:
    entry, seen = Counted(), list[int]()

    async def other_requests() -> None:
        while True:
            seen.append(entry.made)
            await asyncio.sleep(0)

    others = asyncio.ensure_future(other_requests())
    await large_json_bytes({"a": entry.long(8 * PART, weight=4)})
    others.cancel()
    assert set(range(PART // 4, 8 * PART, PART // 4)) <= set(seen)


async def test_a_list_in_several_places_is_made_once() -> None:
    for length in (3, 3 * PART):
        entry = Counted()
        shared = entry.long(length)
        encoded = await large_json_bytes([{"a": shared}, {"b": shared}])
        assert entry.made == length
        assert encoded == json_bytes([{"a": list(shared)}, {"b": list(shared)}])


async def test_small_lists_before_a_large_one_are_not_made_twice() -> None:
    entry = Counted()
    await large_json_bytes({"a": entry.long(PART // 2), "b": entry.long(PART)})
    assert entry.made <= 2 * PART


async def test_what_json_does_not_have_is_an_error() -> None:
    for length in (1, 2 * PART):
        with pytest.raises(TypeError, match="not JSON serializable|set is not JSON"):
            await large_json_bytes({"a": Counted().long(length), "b": {1}})


def test_it_reads_as_the_list_of_its_entries() -> None:
    entries = LargeList([1, 2, 3], lambda item: item * 2)
    assert entries == [2, 4, 6] and entries != [2, 4]
    assert entries == LargeList([2, 4, 6], lambda item: item)
    assert (len(entries), entries[-1], list(entries[:2])) == (3, 6, [2, 4])
    assert type(plain({"a": entries})["a"]) is list


async def test_a_response_has_the_media_type_and_the_headers() -> None:
    response = await large_json_response({"data": LargeList([0.25, 1e-07], float), "n": 2}, {"x-a": "b"})
    assert (response.body, response.media_type) == (b'{"data":[0.25,1e-07],"n":2}', "application/json")
    assert response.headers["x-a"] == "b"


async def test_plain_lists_are_made_in_parts() -> None:
    entry, seen = Counted(), list[int]()

    async def other_requests() -> None:
        while True:
            seen.append(entry.made)
            await asyncio.sleep(0)

    others = asyncio.ensure_future(other_requests())
    value = {"a": [{"b": entry.long(3 * PART)}, {}], "c": [1], "d": {"e": entry.long(2)}}
    encoded = await plain_in_parts(value)
    others.cancel()
    assert encoded == plain(value) and type(encoded["a"][0]["b"]) is list
    assert {PART, 2 * PART} <= set(seen)
