"""Remembered responses stay within their bounds, and the right ones are forgotten."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import ResponseRecord
from sglang_plug_api.responses.store import MemoryResponses, response_size

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 5), st.integers(0, 60)), max_size=40
)


def stored(id: str, size: int) -> ResponseRecord:
    return ResponseRecord(id=id, answer={"text": "x" * size}, messages=({"role": "user", "content": "ü"},))


def test_the_size_is_that_of_the_json() -> None:
    assert response_size(stored("a", 3)) == len('[{"text":"xxx"},[{"role":"user","content":"ü"}],[]]'.encode())


def test_images_count_as_they_were_sent() -> None:
    def sized(*parts: dict[str, str | None]) -> int:
        content = [{"type": "text", "text": "a"}, *parts]
        return response_size(ResponseRecord(id="a", answer={}, messages=({"role": "user", "content": content},)))

    image, more = ({"type": "image", "image_url": "x" * count, "file_id": None} for count in (1000, 3000))
    assert 1000 < sized(image) - sized() < 1030 and sized(more) - sized(image) == 2000
    uploaded = {"type": "image", "image_url": None, "file_id": "file"}
    assert 0 < sized(uploaded) - sized() < 30


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


async def compare(actions: list[tuple[str, int, int]], limit: int, limit_bytes: int) -> None:
    """Compare with a model: it keeps the most recently used responses that fit."""
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
            if response_size(response) <= limit_bytes:
                model.pop(id, None)
                model[id] = response
            while len(model) > limit or sum(map(response_size, model.values())) > limit_bytes:
                model.popitem(last=False)
        assert len(store) == len(model) <= limit
        assert store.size == sum(map(response_size, model.values())) <= limit_bytes
