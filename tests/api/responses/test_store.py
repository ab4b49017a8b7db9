"""Remembered responses stay within their bounds, and the right ones are forgotten."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_api.responses.store import ResponseStore, StoredResponse

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "delete"]), st.integers(0, 5), st.integers(0, 60)), max_size=40
)


def stored(size: int) -> StoredResponse:
    return StoredResponse({"text": "x" * size}, [{"role": "user", "content": "ü"}])


def test_the_size_is_that_of_the_json() -> None:
    assert stored(3).size == len('[{"text":"xxx"},[{"role":"user","content":"ü"}],[]]'.encode())


def test_images_count_as_they_were_sent() -> None:
    def sized(*parts: dict[str, str | None]) -> int:
        return StoredResponse({}, [{"role": "user", "content": [{"type": "text", "text": "a"}, *parts]}]).size

    image, more = ({"type": "image", "image_url": "x" * count, "file_id": None} for count in (1000, 3000))
    assert 1000 < sized(image) - sized() < 1030 and sized(more) - sized(image) == 2000
    uploaded = {"type": "image", "image_url": None, "file_id": "file"}
    assert 0 < sized(uploaded) - sized() < 30


def test_the_oldest_is_forgotten_unless_it_was_used() -> None:
    store = ResponseStore(2, 1 << 20)
    for id in ("a", "b"):
        store.put(id, stored(1))
    assert store.get("a") is not None
    store.put("c", stored(1))
    assert [store.get(id) is not None for id in ("a", "b", "c")] == [True, False, True]


def test_one_that_is_too_large_pushes_nothing_out() -> None:
    store = ResponseStore(9, 200)
    store.put("a", stored(1))
    store.put("b", stored(1000))
    assert store.get("a") is not None and store.get("b") is None


def test_none_are_kept() -> None:
    store = ResponseStore(0, 1 << 20)
    store.put("a", stored(1))
    assert (len(store), store.size, store.enabled) == (0, 0, False)


@given(actions=ACTIONS, limit=st.integers(0, 4), limit_bytes=st.integers(40, 400))
def test_bounds_and_contents(actions: list[tuple[str, int, int]], limit: int, limit_bytes: int) -> None:
    """Compare with a model: it keeps the most recently used responses that fit."""
    store = ResponseStore(limit, limit_bytes)
    model: OrderedDict[str, Any] = OrderedDict()
    for action, number, size in actions:
        id = str(number)
        if action == "delete":
            assert store.delete(id) == (model.pop(id, None) is not None)
        elif action == "get":
            assert store.get(id) == model.get(id)
            if id in model:
                model.move_to_end(id)
        elif (entry := stored(size)).size <= limit_bytes:
            store.put(id, entry)
            model.pop(id, None)
            model[id] = entry
            while len(model) > limit or sum(one.size for one in model.values()) > limit_bytes:
                model.popitem(last=False)
        else:
            store.put(id, entry)
        assert len(store) == len(model) <= limit
        assert store.size == sum(one.size for one in model.values()) <= limit_bytes
