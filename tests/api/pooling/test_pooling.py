"""Tests of the prompts of pooling requests: their lengths, and the joining of pairs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.pooling.pooling import encode_all, fitting, probe_model
from sglang_plug_api.protocol.base import Side
from sglang_plug_api.protocol.score import QueryWithItems
from sglang_plug_api.service.callers import Caller, acting_as
from sglang_plug_api.service.request_context import RequestContext, set_request_context
from sglang_plug_api.text.truncation import Truncation

ENGINE: Any = SimpleNamespace(info={"context_length": 3})


def test_no_prompt_is_made_after_one_that_is_too_long() -> None:
    lengths = []

    def prompts() -> Iterator[list[int]]:
        for length in (2, 3, 4, 1):
            lengths.append(length)
            yield [0] * length

    with pytest.raises(ApiError, match=r"documents\[2\]: The input \(4 tokens\) is longer") as caught:
        fitting(ENGINE, prompts(), 4, "documents")
    assert (caught.value.param, caught.value.code) == ("documents", "context_length_exceeded")
    assert lengths == [2, 3, 4]
    assert fitting(ENGINE, iter([[1], [2, 3]]), 2, "documents") == [[1], [2, 3]]


def test_the_only_prompt_is_not_numbered() -> None:
    with pytest.raises(ApiError, match=r"^The input \(4 tokens\)"):
        fitting(ENGINE, iter([[0] * 4]), 1, "input")


def test_a_query_is_joined_with_an_item_when_it_is_read() -> None:
    items = QueryWithItems("query ", ["a", "b"], item_first=False)
    assert len(items) == 2 and list(items) == ["query a", "query b"]
    assert list(QueryWithItems([1, 2], [[3], []], item_first=True)) == [[3, 1, 2], [1, 2]]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("item_first", [False, True])
def test_what_is_cut_before_it_is_joined_is_the_same(side: Side, item_first: bool) -> None:
    for length in range(8):
        truncation = Truncation(length, side)
        items = QueryWithItems([1, 2, 3], [[4, 5], [], [6, 7, 8, 9]], item_first)
        shorter = items.cut(truncation.cut)
        assert [truncation.cut(prompt) for prompt in shorter] == [truncation.cut(prompt) for prompt in items]
        assert all(len(prompt) <= 2 * length for prompt in shorter)


class Read(list[int]):
    """Token ids that record the threads in which they are read."""

    threads: ClassVar[list[threading.Thread]] = []

    def __iter__(self) -> Iterator[int]:
        self.threads.append(threading.current_thread())
        return super().__iter__()


async def test_many_token_ids_are_read_in_a_thread(text_engine: Any) -> None:
    engine = text_engine()
    Read.threads.clear()
    assert await encode_all(engine, [Read([1, 2])], "input") == [[1, 2]]
    assert Read.threads == [threading.current_thread()]
    await encode_all(engine, [Read([1] * 50)] * 50, "input")
    assert len(Read.threads) == 51 and threading.current_thread() not in Read.threads[1:]


async def test_a_probe_counts_for_no_caller(text_engine: Any, scripted: Any) -> None:
    """A health probe has neither the caller nor the deadline of the request that asked for the health."""
    set_request_context(RequestContext("user", deadline_ms=5000))
    with acting_as(Caller("key")):
        await probe_model(text_engine(), (0,), new_tokens=1)
    (request,) = scripted.requests
    assert (request.caller, request.deadline, "key" in request.id) == ("", None, False)
