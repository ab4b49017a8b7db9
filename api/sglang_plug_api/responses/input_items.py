"""What a request said, as ``/v1/responses/{id}/input_items`` lists it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from sglang_plug_api.errors import SHOWN, ApiError
from sglang_plug_api.job import new_id
from sglang_plug_api.protocol.items import IMAGE_PART
from sglang_plug_api.protocol.items import Item as GivenItem

PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
"""Type of an item -> what its id begins with."""

Item = Mapping[str, Any]


class ItemQuery(BaseModel):
    """Query of ``GET /v1/responses/{id}/input_items``."""

    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    limit: int = Field(20, ge=1, le=100)


def listed(given: str | Sequence[GivenItem]) -> list[Item]:
    """The items, whole: what callers may leave out has been put in."""
    if isinstance(given, str):
        return [_item({"role": "user", "content": given})] if given else []
    return [_item(one.model_dump(exclude_none=True)) for one in given]


def page(items: Sequence[Item], query: ItemQuery) -> dict[str, Any]:
    """Some of ``items``, which are in their own order. Raises ``ApiError`` for an id that is not among them."""
    ordered = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        ids = [one["id"] for one in ordered]
        if query.after not in ids:
            raise ApiError(f"there is no item {query.after[:SHOWN]!r} in this list", param="after")
        ordered = ordered[ids.index(query.after) + 1 :]
    data = ordered[: query.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > len(data),
    }


def _item(given: Item) -> Item:
    kind = given.get("type", "message")
    found = {**given, "type": kind, "id": given.get("id") or f"{PREFIXES[kind]}_{new_id()}", "status": "completed"}
    if kind == "reasoning":
        found.setdefault("summary", [])
    return {**found, "content": _parts(found)} if kind == "message" else found


def _parts(message: Item) -> list[Item]:
    """Content of a message as a list of parts."""
    said = message["content"]
    parts = [{"text": said}] if isinstance(said, str) else said
    return [(_answered if message["role"] == "assistant" else _asked)(part) for part in parts]


def _asked(part: Item) -> Item:
    if part.get("type") == IMAGE_PART:
        return {"detail": "auto", **part}
    return {**part, "type": "input_text"}


def _answered(part: Item) -> Item:
    if part.get("type") == "refusal":
        return part
    return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
