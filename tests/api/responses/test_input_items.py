"""Tests of the pages of the input items of a response."""

from __future__ import annotations

import pytest

from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.responses.input_items import ItemQuery, full_items, items_page

ITEMS = 5


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_end_though_several_items_have_one_id(order: str, limit: int) -> None:
    """Paging ends although a page begins after an id that several items have."""
    messages = [{"type": "message", "id": "same", "role": "user", "content": f"{n}"} for n in range(ITEMS)]
    items = full_items(ResponsesBody.model_validate({"input": messages}).input)
    read, after = [], None
    for _ in range(ITEMS):
        page = items_page(items, ItemQuery.model_validate({"order": order, "limit": limit, "after": after}))
        read += page["data"]
        if not page["has_more"]:
            break
        after = page["last_id"]
    assert not page["has_more"]
    assert read == (items if order == "asc" else items[::-1])
    assert [item["content"][0]["text"] for item in items] == [f"{n}" for n in range(ITEMS)]
    assert items[0]["id"] == "same" and len({item["id"] for item in items}) == ITEMS
