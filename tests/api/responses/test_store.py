"""Stored responses stay within the limits of the store, which removes the least recently used ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import ResponseRecord
from sglang_plug_api.answers.large_json import PART, LargeList
from sglang_plug_api.responses.store import MemoryResponses, response_size

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 5), st.integers(0, 60)), max_size=40
)


def stored(id: str, size: int) -> ResponseRecord:
    return ResponseRecord(id=id, answer={"text": "x" * size}, messages=({"role": "user", "content": "ü"},))


async def test_the_size_is_that_of_the_json() -> None:
    assert await response_size(stored("a", 3)) == len('[{"text":"xxx"},[{"role":"user","content":"ü"}],[]]'.encode())


async def test_images_count_as_they_were_sent() -> None:
    async def sized(*parts: dict[str, str | None]) -> int:
        content = [{"type": "text", "text": "a"}, *parts]
        return await response_size(ResponseRecord(id="a", answer={}, messages=({"role": "user", "content": content},)))

    image, more = ({"type": "image", "image_url": "x" * count, "file_id": None} for count in (1000, 3000))
    assert 1000 < await sized(image) - await sized() < 1030 and await sized(more) - await sized(image) == 2000
    uploaded = {"type": "image", "image_url": None, "file_id": "file"}
    assert 0 < await sized(uploaded) - await sized() < 30


async def test_the_oldest_is_forgotten_unless_it_was_used() -> None:
    store = MemoryResponses(2, 1 << 20)
    for id in ("a", "b"):
        await store.put(stored(id, 1))
    assert await store.get("a") is not None
    await store.put(stored("c", 1))
    assert [await store.get(id) is not None for id in ("a", "b", "c")] == [True, False, True]


async def test_one_that_is_too_large_pushes_nothing_out() -> None:
    store = MemoryResponses(9, 200)
    await store.put(stored("a", 1))
    await store.put(stored("b", 1000))
    assert await store.get("a") is not None and await store.get("b") is None


async def test_none_are_kept() -> None:
    store = MemoryResponses(0, 1 << 20)
    await store.put(stored("a", 1))
    assert (len(store), store.size) == (0, 0)


@given(actions=ACTIONS, limit=st.integers(0, 4), limit_bytes=st.integers(40, 400))
def test_bounds_and_contents(actions: list[tuple[str, int, int]], limit: int, limit_bytes: int) -> None:
    asyncio.run(compare(actions, limit, limit_bytes))


def large(id: str, entry: Callable[[Any], Any] = str, **more: Any) -> ResponseRecord:
    """Return a response with a list that is encoded in parts, so that other tasks can use the store meanwhile."""
    return ResponseRecord(id=id, answer={"list": LargeList(range(4 * PART), entry)}, **more)


async def test_a_response_can_be_read_while_its_size_is_found_out() -> None:
    store = MemoryResponses(9, 1 << 20)
    event = {"type": "response.created", "sequence_number": 0}
    await store.put(large("a", streams=True, running=True), 3600)
    await store.append_events("a", [event])
    putting = asyncio.create_task(store.put(large("a", streams=True)))
    await asyncio.sleep(0)
    assert len(store) == 0 and not putting.done()
    record = await store.get("a")
    assert record is not None and not record.running
    assert [found async for found in store.read_events("a")] == [event]
    await putting
    assert await store.get("a") == record and len(store) == 1


async def test_a_response_is_deleted_while_its_size_is_found_out() -> None:
    store = MemoryResponses(9, 1 << 20)
    putting = asyncio.create_task(store.put(large("a")))
    await asyncio.sleep(0)
    assert await store.delete("a") and await store.get("a") is None
    await putting
    assert (len(store), store.size, await store.get("a")) == (0, 0, None)


async def test_others_are_served_while_a_size_is_found_out() -> None:
    entries, seen = list[int](), list[int]()

    async def others() -> None:
        while True:
            seen.append(len(entries))
            await asyncio.sleep(0)

    def entry(item: int) -> int:
        entries.append(item)
        return item

    serving = asyncio.ensure_future(others())
    await MemoryResponses(9, 1 << 20).put(large("a", entry))
    serving.cancel()
    assert {PART, 2 * PART, 3 * PART} <= set(seen)


async def total_size(responses: Mapping[str, ResponseRecord]) -> int:
    return sum([await response_size(response) for response in responses.values()])


async def compare(actions: list[tuple[str, int, int]], limit: int, limit_bytes: int) -> None:
    """Compare the store with a model that keeps the most recently used responses that fit."""
    store = MemoryResponses(limit, limit_bytes)
    model: OrderedDict[str, ResponseRecord] = OrderedDict()
    for action, number, size in actions:
        id = str(number)
        if action == "delete":
            assert await store.delete(id) == (model.pop(id, None) is not None)
        elif action == "get":
            assert await store.get(id) == model.get(id)
            if id in model:
                model.move_to_end(id)
        else:
            response = stored(id, size)
            await store.put(response)
            if await response_size(response) <= limit_bytes:
                model.pop(id, None)
                model[id] = response
            while len(model) > limit or await total_size(model) > limit_bytes:
                model.popitem(last=False)
        assert len(store) == len(model) <= limit
        assert store.size == await total_size(model) <= limit_bytes
